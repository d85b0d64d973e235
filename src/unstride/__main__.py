"""`python -m unstride` is the command `unstride`."""

from unstride.cli import main

raise SystemExit(main())
