"""Degenerate geometry in 1D, exhaustively: sizes, kernel, stride, dilation, pads, output_padding, all from their least.

Every combination is resolved, and what it reads is compared with brute force: the window, the pairs (input, tap) that
reach each output by the planner's phases and by the picture's, and the count of multiply-adds. A spread of 4 000 runs
between inaccessible pages, in both directions, all types, layouts and kinds of channels, exact on integers.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import product

from tests.compiler.cases import Case
from tests.compiler.guard import Room
from tests.hard import forks
from tests.hard.tally import Tally, main
from unstride import openvino
from unstride.errors import ShapeError
from unstride.explain.axis import Axis
from unstride.plan.phases import axis_phases
from unstride.problem import DTYPE_BYTES, FILTER_LAYOUTS, Problem

_SIZES, _KERNELS, _STRIDES, _DILATIONS = range(1, 5), range(1, 5), range(1, 5), range(1, 4)
_PADS, _OUTPUT_PADDINGS = range(5), range(4)
EXECUTED = (150, 4_000)
_CHANNELS = ((1, 1, 1), (1, 2, 3), (3, 1, 1), (1, 17, 5), (2, 1, 2), (1, 1, 20))  # groups, ci, co

Sizes = tuple[int, int, int, int, int, int, int]  # X, K, s, d, pads_begin, pads_end, output_padding


def combinations() -> list[Sizes]:
    return list(product(_SIZES, _KERNELS, _STRIDES, _DILATIONS, _PADS, _PADS, _OUTPUT_PADDINGS))


def pairs_of(x: int, kernel: int, stride: int, dilation: int) -> dict[int, set[tuple[int, int]]]:
    """Which (input, tap) reach each place of the full extent."""
    found = defaultdict(set)
    for i, k in product(range(x), range(kernel)):
        found[i * stride + k * dilation].add((i, k))
    return found


def fault(sizes: Sizes) -> str:
    """What is wrong with one combination; empty if nothing is."""
    x, kernel, stride, dilation, begin, end, more = sizes
    brute = pairs_of(x, kernel, stride, dilation)
    length = max(brute) + 1 - begin - end + more
    operator = openvino.ConvolutionBackpropData([stride], [begin], [end], [dilation], output_padding=[more])
    try:
        problem = operator.resolve((1, 1, x), (1, 1, kernel)).problem
    except ShapeError:
        return "" if length < 0 else f"{sizes}: refused, but the result has {length} elements"
    if problem.y != (length,) or problem.begin != (begin,):
        return f"{sizes}: window {problem.begin} {problem.y}, expected {begin} {length}"
    if problem.macs != sum(len(brute.get(o + begin, ())) for o in range(length)):
        return f"{sizes}: {problem.macs} multiply-adds"
    phases, axis = axis_phases("scatter", kernel, stride, dilation), Axis(x, kernel, stride, dilation, begin, length)
    for o in range(length):
        place, wanted = o + begin, brute.get(o + begin, set())
        taps = [phase.taps for phase in phases.phases if phase.r == place % stride]
        planned = {(place // stride + tap.a, tap.k) for tap in (taps[0] if taps else ())}
        if {(i, k) for i, k in planned if 0 <= i < x} != wanted:
            return f"{sizes}: the planner reads {planned} for output {o}, expected {wanted}"
        if set(axis.pairs(place)) != wanted:
            return f"{sizes}: the picture shows {axis.pairs(place)} for output {o}, expected {wanted}"
    return ""


def executed_case(index: int, sizes: Sizes) -> Case | None:
    """One combination as a case for the kernels; None where its result would have a negative size."""
    x, kernel, stride, dilation, begin, end, more = sizes
    y = stride * (x - 1) + (kernel - 1) * dilation + 1 - begin - end + more
    if y < 0:
        return None
    head = (("scatter", "gather")[index % 2], list(DTYPE_BYTES)[index // 2 % 4], ("NCX", "NXC")[index // 8 % 2])
    channels = _CHANNELS[index // 16 % len(_CHANNELS)]
    axis = ((x,), (kernel,), (stride,), (dilation,), (begin - more,), (y,))  # a begin below zero, too
    problem = Problem(*head, FILTER_LAYOUTS[index % len(FILTER_LAYOUTS)], 1 + index % 2, *channels, *axis)
    return Case(problem, "none", bool(index & 4), (1, 2, 7)[index % 3], 512, index)


def run(tally: Tally, full: bool) -> None:
    everything = combinations()
    for sizes in everything if full else everything[::7]:
        tally.add("resolved", fault(sizes))
    cases = [case for index, sizes in enumerate(everything) if (case := executed_case(index, sizes))]
    chosen = cases[:: len(cases) // EXECUTED[full]][: EXECUTED[full]]

    @cache
    def room() -> Room:  # made in the child
        return Room()

    def walled(index: int) -> str:
        wrong = room().run(chosen[index], at_end=bool(index // 3 % 2))
        return f"{chosen[index]}: {wrong}" if wrong else ""

    for index, wrong in forks.survey(len(chosen), walled, per_child=500):
        tally.add("executed between walls", wrong and f"{chosen[index]}: {wrong}")


if __name__ == "__main__":
    main("geometry", run, __doc__)
