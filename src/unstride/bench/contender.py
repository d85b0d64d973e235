"""What can be timed, and how a window is told to engines that speak of pads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from unstride.bench.case import Case
from unstride.problem import Problem

__all__ = ["Contender", "Prepared", "Unsupported", "crops", "gather_pads", "split_crops"]


class Unsupported(Exception):
    """This contender cannot express or run the case; the message is the reason."""


@dataclass(frozen=True)
class Prepared:
    """`call` computes the layer once; `result` computes it and returns the array in the problem's layout.

    `note` says, after the first call, how it is computed.
    """

    call: Callable[[], object]
    result: Callable[[], NDArray[Any]]
    note: Callable[[], str] = str


class Contender(Protocol):
    """Anything that can be timed beside the others."""

    @property
    def name(self) -> str: ...

    @property
    def layouts(self) -> tuple[str, ...]: ...

    def prepare(self, case: Case) -> Prepared:
        """Everything that is paid once. Raises `Unsupported` with a reason."""
        ...


def crops(problem: Problem) -> list[tuple[int, int]]:
    """Per axis, how much of the full extent the window cuts at the beginning and the end; negative: it adds zeros."""
    return [(b, full - b - y) for full, b, y in zip(problem.full, problem.begin, problem.y, strict=True)]


def split_crops(problem: Problem) -> tuple[list[int], list[int], list[int]]:
    """pads_begin, pads_end and output_padding of OpenVINO and ONNX."""
    cut = crops(problem)
    if any(begin < 0 for begin, _ in cut):
        raise Unsupported("zeros before the first output")
    return [b for b, _ in cut], [max(e, 0) for _, e in cut], [max(-e, 0) for _, e in cut]


def gather_pads(problem: Problem) -> tuple[list[int], list[int]]:
    """pads_begin and pads_end of the strided convolution that is the gather direction.

    A negative end of less than a stride is what rounding down drops anyway.
    """
    cut = crops(problem)
    if any(begin < 0 or end <= -s for (begin, end), s in zip(cut, problem.stride, strict=True)):
        raise Unsupported("a window that leaves data unread")
    return [b for b, _ in cut], [max(e, 0) for _, e in cut]
