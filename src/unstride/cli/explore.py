"""Open the interactive page of a call in a browser: hover outputs, move every attribute, switch dialect and rules.

The page is one file without network access; without a call it starts from a small example.

examples:
  unstride explore
  unstride explore model.xml --layer up1
  unstride explore --data 1,1,4,4 --filter 1,1,3,3 --strides 2,2 -o page.html --no-open
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from unstride.cli.call import add_arguments, only_one, read_calls
from unstride.cli.explain import write_text
from unstride.cli.output import note, print_json

__all__ = ["configure", "execute"]

_EXAMPLE = {"data": (1, 1, 5, 5), "filter": (1, 1, 3, 3), "strides": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1)}


def configure(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write the page (a new temporary file)")
    parser.add_argument("--no-open", action="store_true", help="only write the page")


def execute(options: argparse.Namespace) -> int:
    from unstride.explain.page import html

    if options.target is None and options.data is None and options.filter is None:
        vars(options).update(_EXAMPLE)
    call = only_one(read_calls(options))
    path = Path(options.output or Path(tempfile.mkdtemp(prefix="unstride-")) / "explore.html")
    write_text(str(path), html(call.resolution, operator=call.operator, output_shape=call.output_shape), quiet=True)
    opened = not options.no_open and _open(path)
    if options.json:
        print_json({"page": str(path), "problem": str(call.resolution.problem), "opened": opened})
    else:
        note(f"{'opened' if opened else 'wrote'} {path}", "green")
    return 0


def _open(path: Path) -> bool:
    import webbrowser

    return webbrowser.open(path.resolve().as_uri())
