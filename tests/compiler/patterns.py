"""Every bit pattern of f16 and bf16 through load, packing and store: `python -m tests.compiler.patterns`.

Each pattern is read as data, read as a weight, and made by rounding sums that lie on a tie, or next to one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.compiler import judge
from tests.compiler.cases import Case
from unstride.problem import Problem
from unstride.reference import DTYPES, rounded
from unstride.runtime.machine import host

ALL = np.arange(65536, dtype=np.uint16)
_CHANNELS = (1, 64)  # one at a time, and by vectors
_SUBNORMAL_AT = {"f16": (10, 24), "bf16": (7, 133)}  # bits of the fraction, and -log2 of the smallest number


def every_pattern(dtype: str) -> Any:
    return ALL.view(DTYPES[dtype])


def failures() -> Iterator[tuple[str, str]]:
    """(what, "" or what is wrong) for each way a pattern can pass through a kernel."""
    for dtype in ("f16", "bf16"):
        for layout in ("NXC", "NCX"):
            for channels in _CHANNELS:
                yield f"{dtype} {layout} data, {channels} channels", _as_data(dtype, layout, channels)
            yield f"{dtype} {layout} weights", _as_weights(dtype, layout)
            for nudge in (-1, 0, 1):
                yield f"{dtype} {layout} sums near ties {nudge:+d}", _as_sums(dtype, layout, nudge)


def _as_data(dtype: str, layout: str, channels: int) -> str:
    """A depthwise 1x1 kernel of ones hands every pattern on."""
    p = Problem.parse(
        f"scatter {dtype} {layout} GIOX n1 g{channels} i1 o1 x{65536 // channels} k1 s1 d1 b0 y{65536 // channels}"
    )
    return _compare(p, every_pattern(dtype).reshape(p.data_shape), np.ones(p.filter_shape, DTYPES[dtype]))


def _as_weights(dtype: str, layout: str) -> str:
    """One pixel of 1 shows the weights."""
    p = Problem.parse(f"scatter {dtype} {layout} GIOX n1 g64 i1 o1 x1 k1024 s1 d1 b0 y1024")
    return _compare(p, np.ones(p.data_shape, DTYPES[dtype]), every_pattern(dtype).reshape(p.filter_shape))


def _as_sums(dtype: str, layout: str, nudge: int) -> str:
    """pattern + (half a unit in its last place, more or less a little): exact in f32, to be rounded to even at ties."""
    values = every_pattern(dtype)
    fraction, tiny = _SUBNORMAL_AT[dtype]
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        _, exponent = np.frexp(wide)
        unit = np.ldexp(1.0, np.maximum(exponent - 1 - fraction, -tiny))
    data = np.stack([values, np.where(np.isfinite(wide), unit, 1).astype(DTYPES[dtype])])
    small = 2.0 ** (-fraction)
    weights = np.array([1, 0.5 + nudge * small, -1, 0.5 - nudge * small], DTYPES[dtype]).reshape(1, 2, 2, 1)
    p = Problem.parse(f"scatter {dtype} {layout} GIOX n1 g1 i2 o2 x65536 k1 s1 d1 b0 y65536")
    weights = weights.transpose(0, 2, 1, 3).copy()  # [g, i, o, k]: the second result subtracts the pattern
    return _compare(p, np.ascontiguousarray(data[None] if layout == "NCX" else data.T[None]), weights)


def _compare(problem: Problem, data: Any, filter: Any) -> str:
    case = Case(problem)
    with np.errstate(all="ignore"):
        wanted = rounded(judge.expected(case, data, filter, None), problem.dtype)
        return judge.differs(judge.run(case, data, filter, None), wanted)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    wrong = count = 0
    for what, fault in failures():
        count += 1
        wrong += bool(fault)
        if fault:
            print(f"  {what}: {fault}")
    print(f"{host().isa.name}: 65536 patterns in {count} ways, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
