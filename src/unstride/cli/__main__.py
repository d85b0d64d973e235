"""`python -m unstride.cli`."""

from __future__ import annotations

import sys

from unstride.cli import main

sys.exit(main())
