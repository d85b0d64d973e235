"""`python -m unstride` is the command `unstride`."""

from unstride.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
