"""`unstride bench`: this package side by side with the installed peers, interleaved, in one process."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from unstride.errors import AttributeValueError, UnstrideError
from unstride.problem import DTYPE_BYTES

__all__ = ["main", "parser"]

_EPILOG = """examples:
  unstride bench                                       the representative 60 layers in both layouts, under ten minutes
  unstride bench --quick --filter depthwise            a first look while working on something
  unstride bench --all --layout ncx --save ncx.jsonl   every bundled layer; continue an interrupted run with --resume
  unstride bench --unseen 40 --seed 7                  random layers of the usual kinds that no table knows
  unstride bench model.xml                             the transposed convolutions of a model file
  unstride bench --problem 'scatter f32 NCX GIOX n1 g1 i64 o32 x64x64 k4x4 s2x2 d1x1 b1x1 y128x128'
  unstride bench --report ncx.jsonl --svg ncx.svg      the tables and the picture of a saved run
  unstride bench --report new.jsonl --before old.jsonl what a change did, layer by layer
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    """The options of `unstride bench`."""
    p = _Parser(
        prog="unstride bench", description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_selection(p.add_argument_group("layers"))
    _add_variants(p.add_argument_group("what is measured"))
    _add_effort(p.add_argument_group("effort"))
    _add_output(p.add_argument_group("output"))
    return p


def _add_selection(group: Any) -> None:
    group.add_argument("file", nargs="*", type=Path, help="model files (.xml, .onnx) whose layers to measure")
    group.add_argument("--subset", choices=["representative"], default="representative", help="the default choice")
    group.add_argument("--all", action="store_true", help="every bundled layer")
    group.add_argument("--filter", metavar="REGEX", help="keep layers whose name, kind or problem line matches")
    group.add_argument("--problem", action="append", metavar="LINE", help="measure this problem line (repeatable)")
    group.add_argument("--unseen", type=int, metavar="N", help="N random layers that are not among the bundled ones")
    group.add_argument("--seed", type=int, default=0, help="for --unseen (0)")
    group.add_argument("--list", action="store_true", help="only print the problem lines that would be measured")


def _add_variants(group: Any) -> None:
    group.add_argument("--layout", choices=["ncx", "nxc", "both"], help="data layout (both)")
    group.add_argument("--direction", choices=["scatter", "gather", "both"], help="(scatter)")
    group.add_argument("--dtype", metavar="LIST", help=f"of {', '.join(DTYPE_BYTES)} (f32)")
    group.add_argument("--batch", type=int, metavar="N", help="this batch size instead of each layer's own")
    group.add_argument("--peers", metavar="LIST", help="torch, torch-frozen, openvino, onnxruntime, jax; none for none")
    group.add_argument("--accuracy", choices=["strict", "standard", "fast"], default="standard", help="ours (standard)")
    group.add_argument("--without-ours", action="store_true", help="the peers alone")
    group.add_argument("--threads", type=int, metavar="N", help="for every contender (the cores of this process)")


def _add_effort(group: Any) -> None:
    group.add_argument("--rounds", type=int, metavar="N", help="at most N rounds a layer (15)")
    group.add_argument("--budget", type=float, metavar="SECONDS", help="for the whole run (540 for the subset)")
    group.add_argument("--quick", action="store_true", help="few layers, short rounds: to look while working")
    group.add_argument("--time-limit", type=float, default=20.0, metavar="SECONDS", help="first call of JAX (20)")


def _add_output(group: Any) -> None:
    group.add_argument("--save", type=Path, metavar="FILE", help="append each finished layer (unstride-bench.jsonl)")
    group.add_argument("--resume", action="store_true", help="go on with the last run in that file")
    group.add_argument("--report", type=Path, metavar="FILE", help="measure nothing; show the last run of a saved file")
    group.add_argument("--before", type=Path, metavar="FILE", help="show what changed since the last run of this file")
    group.add_argument("--json", action="store_true", help="the whole report as JSON on standard output")
    group.add_argument("--svg", type=Path, metavar="FILE", help="write the picture of the speed-ups")


def main(argv: Sequence[str] | None = None) -> int:
    """0 done, 1 one of our results was wrong, 2 bad input."""
    options = parser().parse_args(argv)
    try:
        _check(options)
        return _run(options)
    except UnstrideError as error:
        print(f"unstride bench: {error}", file=sys.stderr)
        return 2


def _check(options: argparse.Namespace) -> None:
    for name in ("threads", "rounds", "unseen", "batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise AttributeValueError(f"--{name}", value, "must be at least 1")
    for name in ("budget", "time_limit"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise AttributeValueError(f"--{name.replace('_', '-')}", value, "must be more than 0")


def _run(options: argparse.Namespace) -> int:
    from unstride.bench import session
    from unstride.bench.plot import speedup_svg
    from unstride.bench.records import last_run
    from unstride.bench.report import as_json, print_change, print_report
    from unstride.bench.summary import make_row

    if options.list:
        print("\n".join(f"{layer.problem}  # {layer.name}" for layer in session.chosen_layers(options)))
        return 0
    before = last_run(options.before) if options.before else None
    run = last_run(options.report) if options.report else session.measure(options)
    if options.json:
        print(json.dumps(as_json(run), indent=1))
    else:
        print_report(run)
        if before is not None:
            print_change(before, run)
    if options.svg:
        title = f"Speed-up against the best peer of each layer ({run.machine['processor']})"
        options.svg.write_text(speedup_svg([make_row(result) for result in run.results], title), encoding="utf-8")
    return int(session.ours_is_wrong(run))
