"""Weights packed once for each accelerated module, for eager calls and for compiled graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from unstride.bridges import _torch_ops as ops
from unstride.bridges._family import family_problem
from unstride.bridges._torch_threads import thread_count, torch_team
from unstride.problem import Problem
from unstride.runtime import pool
from unstride.runtime.execute import Layer

__all__ = ["Slot", "packed_scatter"]

_SAMPLES = 64
_WINDOW = "int[] stride, int[] dilation, int[] begin, SymInt[] size, int groups"
torch.library.define(
    "unstride::packed_scatter",
    f"(Tensor x, Tensor w, Tensor? bias, {_WINDOW}, int slot) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
packed_scatter = torch.ops.unstride.packed_scatter.default


class Slot:
    """Where an accelerated module keeps its packed weights; a copy or a pickle of the module gets its own slot."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self._packed: _Packed | None = None
        _slots[self.number] = self

    def __reduce__(self) -> tuple[type[Slot], tuple[()]]:
        return Slot, ()

    def run(self, x: Tensor, w: Tensor, bias: Tensor | None, *window: Any) -> Tensor:
        """What the operator `scatter` computes, with weights packed by an earlier call if they are still the same."""
        stride, dilation, begin, size, groups = window
        layout = ops.layout_of(x, w)
        settings = (ops.DTYPES[w.dtype], layout, groups, tuple(w.shape), tuple(stride), tuple(dilation), tuple(begin))
        packed = self._packed
        if packed is None or not packed.fits(settings, w, bias):
            packed = self._packed = _Packed(settings, w, bias)
        y = ops.empty(x, layout, x.shape[0], groups * w.shape[1], size)
        with pool.threads(thread_count()), pool.borrowed(torch_team()):
            packed.layer(ops.array_of(x, layout), tuple(size), ops.array_of(y, layout))
        return y


_numbers = count()
_slots: WeakValueDictionary[int, Slot] = WeakValueDictionary()


class _Packed:
    """A layer for one state of one module's parameters."""

    def __init__(self, settings: tuple[Any, ...], w: Tensor, bias: Tensor | None) -> None:
        self._settings = settings
        self._states = [_State(tensor) for tensor in (w, bias) if tensor is not None]
        least = (1,) * w.dim()
        structure = self._resolve(least, least[2:])[0].structure
        weights = ops.array_of(w).reshape(structure.filter_shape)
        self.layer = Layer(structure, self._resolve, weights, None if bias is None else ops.array_of(bias).copy())

    def fits(self, settings: tuple[Any, ...], w: Tensor, bias: Tensor | None) -> bool:
        tensors = [tensor for tensor in (w, bias) if tensor is not None]
        return (
            settings == self._settings
            and len(tensors) == len(self._states)
            and all(state.unchanged(tensor) for state, tensor in zip(self._states, tensors, strict=True))
        )

    def _resolve(self, shape: tuple[int, ...], size: Sequence[int]) -> tuple[Problem, None]:
        dtype, layout, groups, filter_shape, *window = self._settings
        spatial = shape[1:-1] if layout == "NXC" else shape[2:]
        return family_problem(dtype, layout, shape[0], groups, filter_shape, spatial, tuple(size), *window), None


class _State:
    """What tells whether a parameter still holds the values it held.

    torch counts its own writes (`_version`), but not those through `.data` or a NumPy view: so a sample of the values
    is compared as well, and all of them where torch counts nothing. The view of the values also keeps their memory from
    being given to another tensor.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.address = tensor.data_ptr()
        self.version = _version(tensor)
        dense = tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -int(tensor.stride(axis))))
        values = ops.array_of(dense).reshape(-1) if dense.is_contiguous() else None
        step = 1 if values is None or self.version is None else max(1, values.size // _SAMPLES)
        self.values = None if values is None else values[::step]
        self.copy = None if values is None else values[::step].copy()

    def unchanged(self, tensor: Tensor) -> bool:
        if self.values is None or self.copy is None:
            return False
        known = tensor.data_ptr() == self.address and _version(tensor) == self.version
        if self.values.flags.c_contiguous:
            return known and not _memcmp(self.address, self.copy.ctypes.data, self.copy.nbytes)
        return known and self.values.tobytes() == self.copy.tobytes()


def _version(tensor: Tensor) -> int | None:
    """None for a tensor made in inference mode, whose changes torch does not count."""
    return None if tensor.is_inference() else int(tensor._version)


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


# --- in compiled graphs ----------------------------------------------------------------------------------------------


def _packed_scatter(x: Tensor, w: Tensor, bias: Tensor | None, *window_and_slot: Any) -> Tensor:
    *window, number = window_and_slot
    slot = _slots.get(number)  # gone once the module is no longer accelerated, though its graph may live on
    result: Tensor = ops.scatter(x, w, bias, *window) if slot is None else slot.run(x, w, bias, *window)
    return result


def _fake_packed_scatter(x: Tensor, w: Tensor, bias: Tensor | None, *window_and_slot: Any) -> Tensor:
    return ops.fake_scatter(x, w, bias, *window_and_slot[:-1])


torch.library.impl("unstride::packed_scatter", "cpu", _packed_scatter)
torch.library.register_fake("unstride::packed_scatter", _fake_packed_scatter)
