"""Programs that try to break the package, each with a count: `python -m tests.hard` runs them all.

    python -m tests.hard.NAME --quick      a slice, in seconds
    python -m tests.hard.NAME --full       every count of the score card

Each prints `NAME: N runs, M failures` and ends with 1 if anything failed.
"""
