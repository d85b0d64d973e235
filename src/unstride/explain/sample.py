"""A small call of an operator, for pictures of operators that were given no arrays yet."""

from __future__ import annotations

from itertools import product
from typing import Any

from unstride.dialects import Operator, Resolution, onednn, openvino
from unstride.errors import UnstrideError

__all__ = ["sample_resolution"]

_SIZES = {"scatter": (4, 5, 6, 3, 8, 2, 1), "gather": (9, 8, 10, 7, 6, 5, 4)}
_KERNELS = (3, 4, 5, 2, 1)
_MOST_AXES = 3


def sample_resolution(operator: Operator) -> Resolution | None:
    """The first small call that the operator accepts and that computes something; None if there is none.

    >>> from unstride import openvino
    >>> sample_resolution(openvino.ConvolutionBackpropData(strides=[2, 2])).problem.y
    (9, 9)
    """
    rank = _rank(operator)
    if rank > _MOST_AXES:
        return None
    for kernel, size in product(_KERNELS, _SIZES[operator._direction]):
        resolution = _try(operator, (size,) * rank, (kernel,) * rank)
        if resolution is not None and 0 not in resolution.problem.y:
            return resolution
    return None


def _rank(operator: Any) -> int:
    """The number of axes the attributes speak of; two where they leave it open."""
    for name in ("strides", "stride", "kernel_shape", "dilations", "padding"):
        value = getattr(operator, name, None)
        if isinstance(value, list | tuple):
            return len(value)
    return 2


def _try(operator: Operator, size: tuple[int, ...], kernel: tuple[int, ...]) -> Resolution | None:
    wanted = getattr(operator, "kernel_shape", None)
    kernel = kernel if wanted is None else tuple(wanted)
    data, filter_shape = _shapes(operator, size, kernel)
    needs_shape = isinstance(operator, onednn.ConvolutionBackpropData) and operator.output_shape is None
    try:
        return operator.resolve(data, filter_shape, _natural(operator, size, kernel) if needs_shape else None)
    except UnstrideError:
        return None


def _shapes(operator: Any, size: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of data and filter with one channel per group."""
    groups = getattr(operator, "groups", getattr(operator, "group", 1))
    if isinstance(operator, openvino.GroupConvolutionBackpropData):
        return (1, 2, *size), (2, 1, 1, *kernel)
    data = (1, *size, groups) if operator._data_layout() == "NXC" else (1, groups, *size)
    if not hasattr(operator, "filter_format"):
        return data, (groups, 1, *kernel)
    sizes = {"I": (groups,), "O": (1,), "X": kernel, "G": ()}
    return data, tuple(n for letter in operator._filter_layouts[operator.filter_format] for n in sizes[letter])


def _natural(operator: Any, size: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[int, ...]:
    """The output size that needs no rounding: what the data came from."""
    rows = zip(size, kernel, operator.strides, operator.dilations, operator.pads_begin, operator.pads_end, strict=True)
    if (operator.auto_pad or "none") != "none":
        return tuple(x * s for x, s in zip(size, operator.strides, strict=True))
    return tuple(s * (x - 1) + (k - 1) * d + 1 - pb - pe for x, k, s, d, pb, pe in rows)
