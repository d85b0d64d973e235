"""The one-line text of a problem: what is read is written as it was read, and can be planned and counted."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.harness import fuzz, printable

_PLANNED_TAPS = 10_000


def load() -> Callable[[bytes], None]:
    from math import prod

    from unstride.errors import UnstrideError
    from unstride.plan.direct import plan_direct
    from unstride.plan.machine import AVX2
    from unstride.problem import Problem

    def check(data: bytes) -> None:
        try:
            problem = Problem.parse(data.decode("utf-8", "replace"))
        except UnstrideError as error:
            printable(error)
            return
        assert Problem.parse(str(problem)) == problem
        assert problem.macs >= 0
        structure = problem.structure
        if prod(structure.kernel) * structure.groups * (structure.ci + structure.co) < _PLANNED_TAPS:
            plan_direct(structure, AVX2)

    return check


if __name__ == "__main__":
    fuzz("problem", load)
