"""The sentences that go with a picture: title, window, one output spelled out, phases, what is not drawn."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, product
from math import gcd, prod

from unstride.explain.axis import Axis, axes_of
from unstride.problem import Problem

__all__ = ["border_words", "diagnosis", "equation", "shown_part", "sizes", "summary", "window_line"]

_TERMS = 4


def sizes(values: Iterable[int]) -> str:
    """`(3, 4)` as it is read aloud."""
    return "\N{MULTIPLICATION SIGN}".join(map(str, values))


def summary(problem: Problem) -> tuple[str, str]:
    """A title, and a sentence for those who cannot see the picture."""
    x, y = sizes(problem.x), sizes(problem.y)
    if problem.direction == "gather":
        title = f"Gradient of a transposed convolution, {problem.rank}D: {y} → {x}"
    else:
        title = f"Transposed convolution, {problem.rank}D: {x} → {y}"
    words = f"Kernel {sizes(problem.kernel)}, stride {sizes(problem.stride)}, dilation {sizes(problem.dilation)}. "
    return title, words + diagnosis(problem)[1]


def window_line(problem: Problem) -> str:
    """The window in one line: with begin and Y everything is said."""
    parts = [f"kernel {sizes(problem.kernel)}", f"stride {sizes(problem.stride)}"]
    if any(d > 1 for d in problem.dilation):
        parts.append(f"dilation {sizes(problem.dilation)}")
    return ", ".join([*parts, f"full {sizes(problem.full)}, begin {sizes(problem.begin)}, Y {sizes(problem.y)}"])


def border_words(problem: Problem) -> tuple[str, str]:
    """What positions are called that the taps reach but the window leaves out, and the other way round."""
    return ("read as zero", "never read") if problem.direction == "gather" else ("cropped", "zero")


def equation(problem: Problem, axes: tuple[Axis, ...], chosen: tuple[int, ...]) -> str:
    """One element of the result as the sum it is.

    >>> p = Problem.parse("scatter f32 NCX GIOX n1 g1 i1 o1 x5 k3 s2 d1 b1 y9")
    >>> equation(p, axes_of(p), (3,))
    'y[3] = x[2]·w[0] + x[1]·w[2]'
    """
    gather = problem.direction == "gather"
    source, result = ("y", "x") if gather else ("x", "y")
    per_axis = [a.reads(i) if gather else a.taps(i + a.begin) for a, i in zip(axes, chosen, strict=True)]
    terms = []
    for taps in islice(product(*(taps[:_TERMS] for taps in per_axis)), _TERMS):
        places = (_partner(a, i, k, gather) for a, i, k in zip(axes, chosen, taps, strict=True))
        terms.append(f"{source}{_index(tuple(places))}·w{_index(taps)}")
    more = prod(len(taps) for taps in per_axis) - len(terms)
    left = f"{result}{_index(chosen)} = "
    return left + (" + ".join(terms) or "0  (no tap reaches it)") + (f" + {more} more" if more > 0 else "")


def _partner(axis: Axis, chosen: int, tap: int, gather: bool) -> int:
    """The element on the other side that meets the chosen one through a tap."""
    if gather:
        return chosen * axis.stride + tap * axis.dilation - axis.begin
    return axis.source(chosen + axis.begin, tap)


def _index(values: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, values))}]"


def diagnosis(problem: Problem) -> tuple[str, str]:
    """("even" | "uneven" | "holes", a sentence): how evenly the taps cover the large side away from the borders.

    >>> diagnosis(Problem.parse("scatter f32 NCX GIOX n1 g1 i1 o1 x5 k4 s2 d1 b1 y10"))
    ('even', 'Even overlap: every inner output sums 2 taps.')
    """
    axes = axes_of(problem)
    least, most = (prod(axis.overlap[n] for axis in axes) for n in (0, 1))
    verdict = "even" if least == most else "uneven" if least else "holes"
    if problem.direction == "gather":
        return verdict, _words_for_reads(problem, verdict, least, most)
    kernel, stride = sizes(problem.kernel), sizes(problem.stride)
    wish = sizes(-(-k // s) * s for k, s in zip(problem.kernel, problem.stride, strict=True))
    words = {
        "even": f"Even overlap: every inner output sums {_taps(most)}.",
        "uneven": f"Uneven overlap, {least} to {_taps(most)}: kernel {kernel} is not a multiple of stride {stride}, "
        f"hence checkerboards. A kernel of {wish} is even.",
        "holes": f"Holes: {_hole_reason(axes)}; some inner outputs are exactly zero, others sum {_taps(most)}.",
    }
    return verdict, words[verdict]


def _words_for_reads(problem: Problem, verdict: str, least: int, most: int) -> str:
    """The same of the adjoint, where the large side is the data."""
    kernel, stride = sizes(problem.kernel), sizes(problem.stride)
    words = {
        "even": f"Even use: every inner element of the data is in {most} products.",
        "uneven": f"Uneven use, {least} to {most} products for an element of the data: "
        f"kernel {kernel} is not a multiple of stride {stride}.",
        "holes": f"Holes: {_hole_reason(axes_of(problem))}; some inner elements of the data are never read.",
    }
    return words[verdict]


def _hole_reason(axes: tuple[Axis, ...]) -> str:
    if any(gcd(axis.stride, axis.dilation) > 1 for axis in axes):
        return "stride and dilation share a factor, so taps skip positions"
    return "the kernel is smaller than the stride"


def _taps(count: int) -> str:
    return f"{count} tap" if count == 1 else f"{count} taps"


def shown_part(problem: Problem, limit: int) -> list[str]:
    """What the picture leaves out, in words; empty where it leaves out nothing."""
    notes = []
    axes = axes_of(problem)
    if len(axes) > 2:
        notes.append(f"The last two of {len(axes)} spatial axes are drawn.")
        for n, axis in enumerate(axes[:-2]):
            notes.append(
                f"Axis {n}: X {axis.x}, kernel {axis.kernel}, stride {axis.stride}, begin {axis.begin}, Y {axis.y}."
            )
    if any(axis.high - axis.low > limit for axis in axes[-2:]):
        notes.append("Abridged: positions around the borders are drawn, ⋯ stands for the rest.")
    if 0 in problem.y:
        notes.append("The window is empty: nothing is computed.")
    return notes
