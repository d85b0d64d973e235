"""`python -m unstride.examples DIR` writes the bundled example."""

from __future__ import annotations

import sys
from pathlib import Path

from unstride.examples import write_example

print(write_example(Path(sys.argv[1])))
