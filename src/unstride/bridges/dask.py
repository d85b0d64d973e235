"""The operators on dask arrays: volumes larger than memory, exact at every chunk border.

    import dask.array as da
    from unstride.bridges.dask import conv_transpose

    y = conv_transpose(volume, weights, stride=2)            # lazy; chunks follow those of `volume`
    y.to_zarr("upsampled.zarr")

A chunk of the result needs an exact range of source pixels: those from which some tap reaches it. The task of a chunk
cuts that range out of the source chunks it touches and runs one `Problem` whose window is shifted. So any chunking
gives the same bits as the whole array would, and a task holds one source range, one result chunk and the weights.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.utils import parse_bytes

from unstride.dialects._operator import Operator
from unstride.dialects.functional import ConvTranspose
from unstride.errors import DTypeError, ShapeError
from unstride.problem import Problem, Structure
from unstride.runtime import buffers
from unstride.runtime.execute import Layer

__all__ = ["apply", "conv_transpose"]

Axes = int | Sequence[int]
Range = tuple[int, int]
_LAYERS_KEPT = 8


def conv_transpose(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Axes = 1,
    padding: Axes = 0,
    output_padding: Axes = 0,
    groups: int = 1,
    dilation: Axes = 1,
    accuracy: str = "strict",
) -> Any:
    """Transposed convolution of a dask array `[N, C, X...]` by torch's conventions; weights may be NumPy or dask.

    >>> x = da.ones((1, 1, 4), chunks=(1, 1, 1), dtype="f4")
    >>> conv_transpose(x, np.ones((1, 1, 3), "f4"), stride=2).compute()
    array([[[1., 1., 2., 1., 2., 1., 2., 1., 1.]]], dtype=float32)
    """
    operator = ConvTranspose(stride, padding, output_padding, groups, dilation)
    return apply(operator, x, w, bias, accuracy=accuracy)


def apply(
    operator: Operator, data: Any, filter: Any, bias: Any = None, *, output_shape: Any = None, accuracy: str = "strict"
) -> Any:
    """Any operator object of this package on a dask array; the result is lazy.

    Result chunks follow the data's, cut smaller where one would pass dask's `array.chunk-size`. With the accuracy
    "strict" results are the same bits for every chunking.
    """
    data, weights = _as_dask("data", data), _as_dask("filter", filter).rechunk(-1)
    dtype = buffers.dtype_name(np.empty(0, data.dtype), "data")
    if weights.dtype != data.dtype:
        raise DTypeError("filter", weights.dtype, f"must have the data's type {data.dtype}", "convert one of them")
    problem = operator.problem(data.shape, weights.shape, output_shape, dtype)
    offsets = None if bias is None else _checked_bias(bias, problem)
    inputs = [data, weights] if offsets is None else [data, weights, offsets]
    token = tokenize([array.name for array in inputs], str(problem), accuracy)
    chunks = _result_chunks(problem, data.chunks)
    name = f"conv-transpose-{token}"
    shared = [(array.name, *(0,) * array.ndim) for array in inputs[1:]]
    tasks = dict(_tasks(name, problem, data, chunks, shared, accuracy))
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=inputs)
    return da.Array(graph, name, chunks, dtype=data.dtype, shape=problem.result_shape)


def _as_dask(field: str, array: Any) -> Any:
    if not isinstance(array, da.Array):
        array = da.from_array(buffers.as_input(array, field), chunks=-1)
    if any(math.isnan(size) for size in array.shape):
        raise ShapeError(field, array.shape, "its chunks have unknown sizes", f"use {field}.compute_chunk_sizes()")
    return array


def _checked_bias(bias: Any, problem: Problem) -> Any:
    values = _as_dask("bias", bias).rechunk(-1)
    channels = problem.groups * (problem.co if problem.direction == "scatter" else problem.ci)
    if values.shape != (channels,):
        raise ShapeError("bias", values.shape, f"needs one value for each of the {channels} channels of the result")
    if values.dtype != buffers.numpy_dtype(problem.dtype):
        raise DTypeError("bias", values.dtype, f"must have the filter's type {problem.dtype}")
    return values


# --- which pixels a chunk needs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """One spatial axis of a problem."""

    scatter: bool
    x: int
    y: int
    extent: int
    stride: int
    begin: int

    @property
    def source(self) -> int:
        return self.x if self.scatter else self.y

    @property
    def result(self) -> int:
        return self.y if self.scatter else self.x

    def scaled(self, source: int) -> int:
        """A length of the source as a length of the result."""
        return source * self.stride if self.scatter else -(-source // self.stride)

    def chunks(self, source_chunks: tuple[int, ...]) -> tuple[int, ...]:
        """Chunks of the result: the source's, scaled, so that a regular grid stays one."""
        step = max(1, self.scaled(max(source_chunks)))
        cuts = [self.scaled(edge) for edge in accumulate(source_chunks)]
        cuts = [0, *(cut for cut in cuts if cut < self.result)]
        cuts += range(cuts[-1] + step, self.result, step)
        return tuple(high - low for low, high in pairwise([*cuts, self.result]) if high > low) or (0,)

    def sources(self, low: int, high: int) -> Range:
        """The source pixels that reach result [low, high); where none does one pixel, the least a problem can have."""
        if self.scatter:
            first = -(-(low + self.begin - self.extent + 1) // self.stride)
            last = (high - 1 + self.begin) // self.stride
        else:
            first = low * self.stride - self.begin
            last = (high - 1) * self.stride + self.extent - 1 - self.begin
        first = min(max(first, 0), self.source - 1)
        return first, min(max(last, first), self.source - 1) + 1

    def begin_of(self, low: int, first: int) -> int:
        """The window's begin for the part that starts at result `low` and source `first`."""
        return self.begin + (low - first * self.stride if self.scatter else first - low * self.stride)


def _axes(problem: Problem) -> list[_Axis]:
    scatter = problem.direction == "scatter"
    columns = (problem.x, problem.y, problem.extent, problem.stride, problem.begin)
    return [_Axis(scatter, *row) for row in zip(*columns, strict=True)]


def _spatial(problem: Problem, per_axis: Sequence[Any]) -> list[Any]:
    """The entries of the spatial axes, of a list with one entry for each axis of an array."""
    return list(per_axis[2:] if problem.data_layout == "NCX" else per_axis[1:-1])


def _in_array_order(problem: Problem, batch: Any, channels: Any, spatial: Sequence[Any]) -> tuple[Any, ...]:
    return (batch, channels, *spatial) if problem.data_layout == "NCX" else (batch, *spatial, channels)


def _result_chunks(problem: Problem, data_chunks: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    rows = zip(_axes(problem), _spatial(problem, data_chunks), strict=True)
    spatial = [axis.chunks(chunks) for axis, chunks in rows]
    channels = problem.groups * (problem.co if problem.direction == "scatter" else problem.ci)
    pixel_bytes = max(data_chunks[0], default=0) * channels * problem.itemsize
    limit = parse_bytes(dask.config.get("array.chunk-size"))
    return _in_array_order(problem, data_chunks[0], (channels,), _bounded(spatial, max(pixel_bytes, 1), limit))


def _bounded(spatial: list[tuple[int, ...]], pixel_bytes: int, limit: int) -> list[tuple[int, ...]]:
    """Halve the chunks of the axis with the largest one until a chunk fits the limit."""
    while math.prod(map(max, spatial)) * pixel_bytes > limit and max(map(max, spatial)) > 1:
        widest = max(range(len(spatial)), key=lambda axis: max(spatial[axis]))
        half = -(-max(spatial[widest]) // 2)
        spatial[widest] = tuple(part for size in spatial[widest] for part in (min(size, half), size - half) if part > 0)
    return spatial


# --- the graph -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """One task: where its source parts go, and the problem that gives its chunk."""

    problem: Problem
    parts: tuple[tuple[slice, ...], ...]
    weights: str  # names the weights, so that a worker packs them once
    accuracy: str


@dataclass(frozen=True)
class _Cut:
    """The part of a source chunk that a task needs: only this travels between workers."""

    part: tuple[slice, ...]

    def __call__(self, chunk: Any) -> Any:
        return np.ascontiguousarray(chunk[self.part])


def _tasks(
    name: str, problem: Problem, data: Any, chunks: tuple[tuple[int, ...], ...], shared: list[Any], accuracy: str
) -> Iterator[tuple[Any, Any]]:
    """Keys and tasks: one for each result chunk, and one for each cut it needs."""
    axes, weights = _axes(problem), f"{shared} {accuracy}"
    starts = [list(accumulate(sizes, initial=0)) for sizes in chunks]
    for index in product(*(range(len(sizes)) for sizes in chunks)):
        lows = _spatial(problem, [starts[axis][i] for axis, i in enumerate(index)])
        sizes = _spatial(problem, [chunks[axis][i] for axis, i in enumerate(index)])
        ranges = [axis.sources(low, low + max(size, 1)) for axis, low, size in zip(axes, lows, sizes, strict=True)]
        part = _part(problem, chunks[0][index[0]], axes, lows, sizes, ranges)
        keys, places = [], []
        for key, cut, place in _pieces(problem, data, index[0], ranges):
            if cut is None:
                keys.append(key)
            else:
                keys.append((f"cut-{name}", *index, len(keys)))
                yield keys[-1], (cut, key)
            places.append(place)
        piece = _Piece(part, tuple(places), weights, accuracy)
        yield (name, *index), (_run, piece, keys, *shared)


def _part(
    problem: Problem, batch: int, axes: list[_Axis], lows: list[int], sizes: list[int], ranges: list[Range]
) -> Problem:
    """The problem of one chunk: a shifted window over a part of the source."""
    begin = tuple(axis.begin_of(low, first) for axis, low, (first, _) in zip(axes, lows, ranges, strict=True))
    source = tuple(end - first for first, end in ranges)
    x, y = (source, tuple(sizes)) if problem.direction == "scatter" else (tuple(sizes), source)
    return replace(problem, batch=batch, x=x, y=y, begin=begin)


def _pieces(
    problem: Problem, data: Any, batch: int, ranges: list[Range]
) -> Iterator[tuple[Any, _Cut | None, tuple[slice, ...]]]:
    """(key of a source chunk, the cut from it or None for all of it, its place in the source range)."""
    channel_axis = 1 if problem.data_layout == "NCX" else len(data.chunks) - 1
    wanted = _in_array_order(problem, None, (0, data.shape[channel_axis]), ranges)
    choices = [_overlaps(sizes, window) for sizes, window in zip(data.chunks[1:], wanted[1:], strict=True)]
    whole = slice(0, data.chunks[0][batch])
    for choice in product(*choices):
        key = (data.name, batch, *(index for index, _, _ in choice))
        cut = (whole, *(inside for _, inside, _ in choice))
        place = (whole, *(target for _, _, target in choice))
        sizes = [axis[i] for axis, i in zip(data.chunks, key[1:], strict=True)]
        yield key, None if cut == tuple(slice(0, size) for size in sizes) else _Cut(cut), place


def _overlaps(sizes: tuple[int, ...], window: Range) -> list[tuple[int, slice, slice]]:
    """(chunk, slice of the chunk, slice of the window) of all chunks that meet the window."""
    first, end = window
    found = []
    for index, (low, high) in enumerate(pairwise(accumulate(sizes, initial=0))):
        start, stop = max(low, first), min(high, end)
        if start < stop:
            found.append((index, slice(start - low, stop - low), slice(start - first, stop - first)))
    return found


# --- on the worker ---------------------------------------------------------------------------------------------------


def _run(piece: _Piece, parts: list[Any], weights: Any, bias: Any = None) -> Any:
    """The chunk of one task."""
    problem = piece.problem
    layer = _layer(piece, weights, bias)
    return layer(_assembled(problem, piece.parts, parts), (*problem.begin, *problem.x, *problem.y))


def _assembled(problem: Problem, places: tuple[tuple[slice, ...], ...], parts: list[Any]) -> Any:
    if len(parts) == 1:
        return np.asarray(parts[0])
    source = np.empty(problem.data_shape, buffers.numpy_dtype(problem.dtype))
    for place, part in zip(places, parts, strict=True):
        source[place] = part
    return source


_layers: dict[tuple[str, Structure], Layer] = {}
_layers_lock = threading.Lock()


def _after_fork_in_child() -> None:
    global _layers_lock
    _layers_lock = threading.Lock()  # who held it does not exist in the child


os.register_at_fork(after_in_child=_after_fork_in_child)


def _layer(piece: _Piece, weights: Any, bias: Any) -> Layer:
    """The packed weights of this process. One thread a task: dask itself keeps the cores busy."""
    problem = piece.problem
    key = (piece.weights, problem.structure)
    with _layers_lock:
        if key not in _layers:
            if len(_layers) >= _LAYERS_KEPT:
                _layers.pop(next(iter(_layers)))
            filter = np.asarray(weights).reshape(problem.filter_shape)
            resolve = _Window(problem)
            options: dict[str, Any] = {"threads": 1, "accuracy": piece.accuracy}
            _layers[key] = Layer(problem.structure, resolve, filter, bias, **options)
        return _layers[key]


class _Window:
    """Resolves a call of a layer whose "output shape" spells the whole window: begin, x and y."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __call__(self, shape: tuple[int, ...], window: Any) -> tuple[Problem, None]:
        rank = self._problem.rank
        begin, x, y = (tuple(window[i * rank : (i + 1) * rank]) for i in range(3))
        return replace(self._problem, batch=shape[0], x=x, y=y, begin=begin), None
