"""`python -m unstride.bench` is `unstride bench`."""

from __future__ import annotations

import sys

from unstride.bench import main

sys.exit(main())
