"""Memory: sizes from 1 MB to 2**70 bytes under a limit of 2 GB, every allocation refused once, and nothing that leaks.

* 300 problems whose result, data or filter has a size drawn on a logarithmic scale: a right result or SizeLimitError;
* the n-th allocation inside the package fails, for every n until a call gets through: SizeLimitError, and the next
  call is right;
* 100 000 calls and 5 000 compiled layers leave the process as large as it was.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import resource
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np

import unstride
from tests.hard import forks
from tests.hard.tally import Tally, main
from unstride import onednn, openvino
from unstride.errors import RuleWarning, SizeLimitError, UnstrideError
from unstride.problem import Problem
from unstride.reference import reference
from unstride.runtime import execute, gradients

_LIMIT = 2 * 2**30
PROBLEMS = (12, 300)
CALLS, COMPILES = (3_000, 100_000), (150, 5_000)
_GROWTH_BYTES = 4 * 2**20
_PACKAGE = str(Path(unstride.__file__).parent)
_ALLOCATORS = ("empty", "zeros", "full", "array", "ascontiguousarray")


# --- sizes ----------------------------------------------------------------------------------------------------------


def _one_size(seed: int) -> str:
    """One problem with `2**power` bytes somewhere: "=result", "=refused", or what is wrong."""
    rng = Random(f"memory {seed}")
    size = int(2 ** rng.uniform(20, 70)) // 4
    warnings.simplefilter("ignore", RuleWarning)
    try:
        return _LARGE[seed % len(_LARGE)](size) or "=result"
    except SizeLimitError:
        return "=refused"
    except UnstrideError as error:  # a size beyond 2**31 - 1 may be refused as an attribute
        return "=refused" if size > 2**30 else f"{size} elements: {error}"


def _seen_everywhere(shape: tuple[int, ...]) -> Any:
    """An array of ones that owns one element; a size that NumPy cannot describe is out of reach for everybody."""
    if 4 * np.prod([float(n) for n in shape]) >= 2**62:
        raise SizeLimitError("test", shape, "no array of this size can be described")
    return np.broadcast_to(np.float32(1), shape)


def _large_result(size: int) -> str:
    """A long stride: little data, a large result."""
    op = openvino.ConvolutionBackpropData([max(1, min(size // 8, 2**40))])
    x = np.ones((1, 1, 9), np.float32)
    y = op(x, np.ones((1, 1, 1), np.float32))
    return "" if float(y.sum()) == 9 else f"result of {y.shape}: sum {y.sum()}"


def _large_output_shape(size: int) -> str:
    side = int(size**0.5)
    op = openvino.ConvolutionBackpropData([2, 2])
    y = op(np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 2, 2), np.float32), [side, side])
    return "" if float(y.sum()) == 64 else f"output_shape {side}: sum {y.sum()}"


def _large_batch(size: int) -> str:
    batch = max(1, size // 64)
    y = openvino.ConvolutionBackpropData([1])(_seen_everywhere((batch, 16, 4)), np.ones((16, 1, 1), np.float32))
    return "" if (y[0] == 16).all() and (y[-1] == 16).all() else f"batch {batch}: {y[0]}"


def _large_filter(size: int) -> str:
    channels = max(1, int((size / 4) ** 0.5))
    layer = openvino.ConvolutionBackpropData([2]).compile(_seen_everywhere((channels, channels, 4)))
    y = layer(np.ones((1, channels, 1), np.float32))
    return "" if (y == channels).all() else f"filter of {channels} channels: {y.ravel()[:3]}"


def _large_gradient(size: int) -> str:
    delta = _seen_everywhere((1, max(3, size), 1))
    op = onednn.ConvTransposeBackpropData([1], [0], [0], [1])
    y = op(delta, np.ones((3, 1, 1), np.float32))
    return "" if (y[0, :5] == 3).all() else f"delta of {size}: {y.ravel()[:3]}"


_LARGE = (_large_result, _large_output_shape, _large_batch, _large_filter, _large_gradient)


def sizes(tally: Tally, count: int) -> None:
    outcomes: Counter[str] = Counter()

    def limited(seed: int) -> str:
        resource.setrlimit(resource.RLIMIT_AS, (_LIMIT, _LIMIT))
        return _one_size(seed)

    for seed, answer in forks.survey(count, limited, seconds=300, per_child=1):
        outcomes[answer] += 1
        tally.add("sizes under 2 GB", "" if answer.startswith("=") else f"size {seed}: {answer}")
    tally.note(f"sizes under 2 GB: {outcomes['=result']} results, {outcomes['=refused']} refused")


# --- refused allocations --------------------------------------------------------------------------------------------


class Refusal:
    """Counts the package's allocations, and refuses the one with number `target`."""

    def __init__(self, target: int) -> None:
        self.target, self.seen, self.site = target, 0, ""

    def wrapped(self, allocate: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            frame = inspect.currentframe()
            caller = frame.f_back if frame else None
            if caller and caller.f_code.co_filename.startswith(_PACKAGE):
                self.seen += 1
                if self.seen == self.target:
                    name = Path(caller.f_code.co_filename).name
                    self.site = f"{name}:{caller.f_code.co_name}:{caller.f_lineno}"
                    raise MemoryError("refused by the test")
            return allocate(*args, **options)

        return call

    @contextmanager
    def installed(self) -> Iterator[None]:
        arrays = {name: self.wrapped(getattr(np, name)) for name in _ALLOCATORS}
        block = self.wrapped(ctypes.create_string_buffer)
        with mock.patch.multiple(np, **arrays), mock.patch.object(ctypes, "create_string_buffer", block):
            yield


def scenarios() -> dict[str, tuple[Callable[[], Any], Any]]:
    """Calls that allocate in every way there is, with what they give."""
    found: dict[str, tuple[Callable[[], Any], Any]] = {}
    for text in (
        "scatter f32 NCX GIOX n1 g1 i3 o4 x9x9 k3x3 s2x2 d1x1 b1x1 y17x17",
        "scatter f16 NXC XGIO n2 g1 i3 o4 x9 k4 s2 d1 b1 y18",
        "scatter f32 NXC GIOX n1 g1 i32 o64 x16x16 k4x4 s2x2 d1x1 b1x1 y32x32",  # Winograd
        "gather f64 NCX GOIX n1 g2 i2 o3 x5x5 k3x3 s2x2 d1x1 b1x1 y9x9",
        "scatter f32 NXC GIOX n1 g20 i1 o1 x7x7 k3x3 s1x1 d1x1 b1x1 y7x7",
    ):
        problem = Problem.parse(text)
        rng = np.random.default_rng(0)
        dtype = execute.buffers.numpy_dtype(problem.dtype)
        data, filter = (rng.integers(-2, 3, s).astype(dtype) for s in (problem.data_shape, problem.filter_shape))
        channels = problem.groups * (problem.co if problem.direction == "scatter" else problem.ci)
        bias = rng.integers(-2, 3, channels).astype(dtype)
        wanted = reference(problem, data, filter, bias).astype(dtype)
        awkward = np.asfortranarray(data), np.asfortranarray(filter)
        strided = np.empty((*problem.result_shape[:-1], 2 * problem.result_shape[-1]), dtype)[..., ::2]

        def eager(p: Any = problem, x: Any = data, w: Any = filter, b: Any = bias) -> Any:
            return execute.run(p, x, w, b)

        def copied(p: Any = problem, arrays: Any = awkward, b: Any = bias, out: Any = strided) -> Any:
            return execute.run(p, *arrays, b, out=out)

        def compiled(p: Any = problem, x: Any = data, w: Any = filter, b: Any = bias) -> Any:
            return execute.Layer(p.structure, lambda *_: (p, None), w, b)(x)

        found |= {f"{call.__name__} {text}": (call, wanted) for call in (eager, copied, compiled)}
    problem = Problem.parse("scatter f32 NCX GIOX n1 g1 i3 o4 x9x9 k3x3 s2x2 d1x1 b1x1 y17x17")
    small, large = np.ones(problem.small_shape, np.float32), np.ones(problem.large_shape, np.float32)
    expected = gradients.filter_gradient(problem, small, large)
    found["gradient"] = (lambda: gradients.filter_gradient(problem, small, large), expected)
    return found


def refusals(tally: Tally, full: bool) -> None:
    sites: set[str] = set()
    for name, (call, wanted) in scenarios().items():
        if not (full or "f16" in name or name == "gradient"):
            continue
        target = 1
        while True:
            _forget()
            refusal, fault = Refusal(target), ""
            try:
                with refusal.installed():
                    call()
            except SizeLimitError:
                pass
            except BaseException as error:
                fault = f"{type(error).__name__} for {refusal.site}"
            if refusal.seen < target:
                break
            sites.add(refusal.site)
            if not np.array_equal(call(), wanted):
                fault = f"after a refusal at {refusal.site} the next result is wrong"
            tally.add("refused allocations", fault and f"{name}: {fault}")
            target += 1
    tally.note(f"{len(sites)} allocation sites refused")


def _forget() -> None:
    """Plans and work space of earlier calls, so that they are allocated again; machine code stays."""
    from unstride.runtime import program

    program.program.cache_clear()
    program._free_scratch.clear()
    gradients._ready.cache_clear()
    gradients._free_scratch.clear()


# --- leaks ----------------------------------------------------------------------------------------------------------


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def growth(action: Callable[[int], Any], count: int) -> int:
    """By how many bytes the process grew over `count` actions, after as many as fill every bounded store."""
    for index in range(max(600, count // 10)):
        action(index)
    gc.collect()
    before = resident()
    for index in range(count):
        action(index)
    gc.collect()
    return resident() - before


def leaks(tally: Tally, full: bool) -> None:
    op = openvino.ConvolutionBackpropData([2, 2])
    weights = [np.ones((3, 4, k, k), np.float32) for k in (1, 2, 3)]
    layer = op.compile(weights[1])
    data = [np.ones((1, 3, n, 4), np.float32) for n in range(1, 40)]

    def calls(index: int) -> None:
        layer(data[index % len(data)])

    def eager(index: int) -> None:
        op(data[index % len(data)], weights[index % 3])

    def compiles(index: int) -> None:
        op.compile(weights[index % 3], activation=("relu", None)[index % 2])

    for kind, action, count in (("calls", calls, CALLS[full]), ("calls", eager, CALLS[full] // 10)):
        grown = growth(action, count)
        tally.add_all(kind, count, [f"{grown} bytes over {count} calls"] if grown > _GROWTH_BYTES else [])
        tally.note(f"{count} {action.__name__}: {grown / 2**20:+.1f} MiB")
    grown = growth(compiles, COMPILES[full])
    tally.add_all("compiles", COMPILES[full], [f"{grown} bytes"] if grown > _GROWTH_BYTES else [])
    tally.note(f"{COMPILES[full]} compiled layers: {grown / 2**20:+.1f} MiB")


def run(tally: Tally, full: bool) -> None:
    sizes(tally, PROBLEMS[full])
    refusals(tally, full)
    leaks(tally, full)


if __name__ == "__main__":
    main("memory", run, __doc__)
