"""torch's three ways to run a layer, and how its symmetric padding is made to say any window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.bench.case import Case
from unstride.bench.contender import Prepared, Unsupported, crops, gather_pads
from unstride.problem import Problem

__all__ = ["TorchFrozen", "TorchNCX", "TorchNXC"]


class TorchNCX:
    """torch, plain contiguous tensors."""

    name = "torch"
    layouts: tuple[str, ...] = ("NCX",)

    def prepare(self, case: Case) -> Prepared:
        import torch

        torch.set_num_threads(case.threads)
        if case.problem.rank > 3:
            raise Unsupported("more than three spatial axes")
        x, w = self._tensors(case)
        compute, note = self._operator(case.problem, len(x.shape) - 2)

        def call() -> Any:
            with torch.inference_mode():
                return compute(x, w)

        return Prepared(call, lambda: self._result(case, call()), lambda: note)

    def _tensors(self, case: Case) -> tuple[Any, Any]:
        return to_torch(case.data), to_torch(case.dense_weights)

    def _result(self, case: Case, y: Any) -> NDArray[Any]:
        return from_torch(y)

    def _operator(self, problem: Problem, rank: int) -> tuple[Callable[[Any, Any], Any], str]:
        plan = _torch_plan(problem)
        operator = self._raw_operator(problem, rank)
        if not plan.cropped:
            return operator, ""
        where = (slice(None),) * (2 + rank - problem.rank) + plan.window
        return (lambda x, w: operator(x, w)[where]), "torch computes a larger extent, then crops (a view)"

    def _raw_operator(self, problem: Problem, rank: int) -> Callable[[Any, Any], Any]:
        import torch.nn.functional as functional

        name = f"conv_transpose{rank}d" if problem.direction == "scatter" else f"conv{rank}d"
        operator = getattr(functional, name)
        keywords = {key: _lift(value, rank, key) for key, value in _torch_plan(problem).keywords.items()}
        return partial(operator, **keywords, groups=problem.groups)


class TorchNXC(TorchNCX):
    """torch, channels_last memory; 1D runs as 2D of height one, the only channels-last form torch has."""

    name = "torch"
    layouts = ("NXC",)

    def _tensors(self, case: Case) -> tuple[Any, Any]:
        import torch

        rank = case.problem.rank
        x, w = to_torch(case.data).movedim(-1, 1), to_torch(case.dense_weights)
        if rank == 1:
            x, w = x.unsqueeze(2), w.unsqueeze(2)
        memory_format = torch.channels_last_3d if rank == 3 else torch.channels_last
        return x.contiguous(memory_format=memory_format), w.contiguous(memory_format=memory_format)

    def _result(self, case: Case, y: Any) -> NDArray[Any]:
        y = y.squeeze(2) if case.problem.rank == 1 else y
        return from_torch(y.movedim(1, -1))


class TorchFrozen(TorchNXC):
    """The primitive torch.compile uses when it freezes weights: packed once; its result is always channels-last."""

    name = "torch-frozen"

    def prepare(self, case: Case) -> Prepared:
        if case.problem.rank not in (2, 3):
            raise Unsupported("2D and 3D only")
        if case.problem.dtype not in ("f32", "bf16"):
            raise Unsupported("f32 and bf16 only")
        return super().prepare(case)

    def _tensors(self, case: Case) -> tuple[Any, Any]:
        from torch.ops import mkldnn

        x, w = super()._tensors(case)
        scatter = case.problem.direction == "scatter"
        pack = mkldnn._reorder_convolution_transpose_weight if scatter else mkldnn._reorder_convolution_weight
        return x, pack(w, *self._arguments(case.problem), list(x.shape))

    def _raw_operator(self, problem: Problem, rank: int) -> Callable[[Any, Any], Any]:
        from torch.ops import mkldnn

        scatter = problem.direction == "scatter"
        operator = mkldnn._convolution_transpose_pointwise if scatter else mkldnn._convolution_pointwise
        arguments = self._arguments(problem)
        return lambda x, w: operator(x, w, None, *arguments, "none", [], "")

    def _arguments(self, problem: Problem) -> list[Any]:
        keywords = _torch_plan(problem).keywords
        order = ("padding", "output_padding", "stride", "dilation")
        return [*(keywords[key] for key in order if key in keywords), problem.groups]


@dataclass(frozen=True)
class _TorchPlan:
    """torch pads both ends alike, so a lopsided window becomes a larger symmetric one and a crop."""

    keywords: dict[str, list[int]]
    window: tuple[slice, ...]
    cropped: bool


def _torch_plan(problem: Problem) -> _TorchPlan:
    return _torch_scatter(problem) if problem.direction == "scatter" else _torch_gather(problem)


def _torch_scatter(problem: Problem) -> _TorchPlan:
    padding, extra, window, cropped = [], [], [], False
    for (begin, end), s, d, y in zip(crops(problem), problem.stride, problem.dilation, problem.y, strict=True):
        if begin < 0:
            raise Unsupported("zeros before the first output")
        add = begin - end
        pad = begin
        if add >= max(s, d):
            pad, add = max(end, 0), max(-end, 0)
        if add >= max(s, d):
            raise Unsupported("output_padding of a whole stride or more")
        padding.append(pad)
        extra.append(max(add, 0))
        window.append(slice(begin - pad, begin - pad + y))
        cropped |= pad != begin or add < 0
    lists = {"stride": list(problem.stride), "dilation": list(problem.dilation)}
    return _TorchPlan({**lists, "padding": padding, "output_padding": extra}, tuple(window), cropped)


def _torch_gather(problem: Problem) -> _TorchPlan:
    begins, ends = gather_pads(problem)
    padding, window, cropped = [], [], False
    for begin, end, s, x, y, ke in zip(begins, ends, problem.stride, problem.x, problem.y, problem.extent, strict=True):
        skip = max(0, -((begin - end) // s))
        pad = begin + skip * s
        padding.append(pad)
        window.append(slice(skip, skip + x))
        cropped |= (y + 2 * pad - ke) // s + 1 != x
    lists = {"stride": list(problem.stride), "dilation": list(problem.dilation)}
    return _TorchPlan({**lists, "padding": padding}, tuple(window), cropped)


def _lift(values: list[int], rank: int, key: str) -> list[int]:
    """A 1D attribute for the 2D operator: the added axis has size one and does nothing."""
    neutral = 1 if key in ("stride", "dilation") else 0
    return [neutral] * (rank - len(values)) + values


def to_torch(array: NDArray[Any]) -> Any:
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> NDArray[Any]:
    import torch

    wide = tensor.to(torch.float32) if tensor.dtype == torch.bfloat16 else tensor
    values: NDArray[Any] = wide.numpy()
    return values
