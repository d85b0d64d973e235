"""Mutants of the generated code: 400 kernels with one fault each, held against a slice of the suite.

A mutant is one changed line of a kernel's LLVM IR: a loop bound, a mask, an offset, a stride. It is compiled and run in
a child process, between inaccessible pages, on integer cases that use this kernel; it is caught if a result is wrong,
an unwritten element shows, a signal comes, or it never ends. Mutants that LLVM refuses, or compiles to the very same
code, are drawn again; so are those that were looked at and cannot change a result, which are listed with the reason.
Functions that no check reaches are named and left out.
"""

from __future__ import annotations

import os
import re
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from tests.compiler import judge
from tests.compiler.cases import Case, draw
from tests.compiler.guard import Room
from tests.compiler.walled import Wall
from tests.gradients.arrays import integers
from tests.hard import forks
from tests.hard.mutations import Mutant, mutants, sample
from tests.hard.tally import Tally, main
from unstride.cases import random_problem
from unstride.problem import Problem
from unstride.reference import DTYPES, filter_gradient_reference, rounded
from unstride.runtime import cache as store
from unstride.runtime import elf, engine, gradients, program
from unstride.runtime.machine import host

MUTANTS = (9, 400)
CHECKS = (12, 400)
_SHARE = 0.99
_CPU_SECONDS = 8
_WEIGHT = 500

Check = Callable[[], str]


@dataclass
class Subject:
    """One kernel: how it is built, and the checks that run it."""

    key: str
    text: str
    isa: Any
    symbols: tuple[str, ...]
    checks: list[Check] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)


# --- the slice of the suite -----------------------------------------------------------------------------------------

# The kernels that are mutated, each with the channels (groups, ci, co) that lead to it.
_DENSE = ((1, 3, 5), (1, 5, 33), (1, 2, 16), (1, 7, 17), (1, 16, 24), (1, 4, 48), (2, 3, 20), (1, 33, 70), (1, 9, 8))
_DEPTHWISE = ((17, 1, 1), (40, 1, 1), (16, 1, 1), (70, 1, 1), (33, 1, 1))
_WINOGRAD = ((1, 16, 64), (1, 17, 70), (1, 32, 80), (1, 33, 65))
_NARROW = ((1, 5, 3), (1, 2, 1), (1, 17, 2), (1, 3, 4), (6, 1, 1), (3, 2, 2))
FAMILIES = {
    "direct f32 nxc": ("NXC", "strict", _DENSE),
    "direct f32 ncx": ("NCX", "strict", _DENSE),
    "depthwise f32 nxc": ("NXC", "strict", _DEPTHWISE),
    "across f32": ("NCX", "standard", _NARROW),
    "winograd": ("NXC", "standard", _WINOGRAD),
    "pack f32": ("NXC", "strict", _DENSE),
    "gradient dense f32 nxc": ("NXC", "", ()),
    "gradient dense f32 ncx": ("NCX", "", ()),
    "bias f32": ("", "", ()),
}


@cache
def room() -> Room:
    return Room()


def walled(case: Case, at_end: bool) -> str:
    return room().run(case, at_end=at_end)


def not_finite(case: Case, at: int) -> str:
    """An infinite weight: the packer must notice, and padding must not be multiplied."""
    data, filter, bias = judge.exact_operands(case)
    filter.flat[at % filter.size] = np.inf
    with np.errstate(all="ignore"):
        wanted = rounded(judge.expected(case, data, filter, bias), case.problem.dtype)
    return judge.differs(judge.run(case, data, filter, bias), wanted)


@cache
def walls() -> tuple[Wall, Wall, Wall]:
    return Wall(2**23), Wall(2**23), Wall(2**23)


def weight_gradient(problem: Problem, seed: int, l2_bytes: int, at_end: bool) -> str:
    """Between walls, and cut into many boxes by a small cache."""
    small, large = integers(problem, seed)
    arrays = [wall.array(a.shape, a.dtype, at_end=at_end) for wall, a in zip(walls(), (small, large), strict=False)]
    for array, values in zip(arrays, (small, large), strict=True):
        array[...] = values
    out = walls()[2].array(problem.filter_shape, small.dtype, at_end=at_end)
    out[...] = np.nan
    with mock.patch.object(gradients, "host", return_value=replace(host(), l2_bytes=l2_bytes)):
        gradients.filter_gradient(problem, *arrays, threads=2, out=out)
    wanted = filter_gradient_reference(problem, small, large).astype(out.dtype)
    return "" if np.array_equal(out, wanted) else "a wrong weight gradient"


def bias_gradient(problem: Problem, seed: int, at_end: bool) -> str:
    delta = walls()[0].array(problem.result_shape, DTYPES[problem.dtype], at_end=at_end)
    delta[...] = np.random.default_rng(seed).integers(-2, 3, problem.result_shape)
    axes = (0, *range(2, delta.ndim)) if problem.data_layout == "NCX" else tuple(range(delta.ndim - 1))
    wanted = delta.astype(np.float64).sum(axis=axes).astype(delta.dtype)
    return "" if np.array_equal(gradients.bias_gradient(problem, delta), wanted) else "a wrong bias gradient"


def suite(count: int) -> Iterator[Check]:
    """Checks for every family, `count` of them each."""
    for family, (layout, accuracy, channels) in FAMILIES.items():
        rng = Random(f"mutants {family}")
        for index in range(2 * count if family.startswith(("gradient", "across")) else count):
            at_end = bool(index % 2)
            if family == "bias f32":
                yield partial(bias_gradient, _for_bias(rng), index, at_end)
            elif family.startswith("gradient"):
                yield partial(
                    weight_gradient, _for_gradient(rng, layout), index, rng.choice((600, 4_000, 2**18)), at_end
                )
            else:
                case = _for_kernel(rng, layout, accuracy, rng.choice(channels), index)
                yield partial(walled, case, at_end)
                if index % 4 == 0 and accuracy == "strict":
                    yield partial(not_finite, case, index)


def _for_kernel(rng: Random, layout: str, accuracy: str, channels: tuple[int, int, int], seed: int) -> Case:
    """A small problem of any geometry with these channels."""
    while True:
        p = _geometry(rng, channels)
        p = replace(p, dtype="f32", data_layout=layout, groups=channels[0], ci=channels[1], co=channels[2])
        if p.macs <= 9_000_000 and p.bytes <= 3_000_000:
            l2_bytes = rng.choice((0, 40_000, 300_000) if channels in _WINOGRAD else (0, 512, 2_048, 8_192, 40_000))
            return Case(p, "none", rng.random() < 0.5, rng.choice((1, 2)), l2_bytes, seed, accuracy)


def _geometry(rng: Random, channels: tuple[int, int, int]) -> Problem:
    if channels in _WINOGRAD:
        return _for_winograd(rng)
    return _long_lines(rng) if channels in _NARROW and rng.random() < 0.7 else draw(rng).problem


def _long_lines(rng: Random) -> Problem:
    """Lines of every length around one vector and several tiles."""
    k, s, d, x = rng.randint(1, 4), rng.choice((1, 1, 2, 2, 3)), rng.choice((1, 1, 2)), rng.randint(1, 330)
    b, v = rng.randint(-2, 3), rng.randint(1, 4)
    y = max(0, s * (x - 1) + (k - 1) * d + 1 - b + rng.randint(-3, 3))
    rows = f"x{v}x{x} k2x{k} s1x{s} d1x{d} b0x{b} y{v + 1}x{y}"
    if rng.random() < 0.2:  # phases of two outer axes
        x, y = x % 40 + 1, s * (x % 40) + (k - 1) * d + 1
        rows = f"x2x2x2x{x} k3x2x2x{k} s2x2x1x{s} d1x1x1x{d} b1x0x0x0 y3x4x3x{y}"
    return Problem.parse(f"scatter f32 NCX GIOX n1 g1 i1 o1 {rows}")


def _for_winograd(rng: Random) -> Problem:
    """Two taps a phase, with and without the first one; maps of a few tiles and of several units; outer taps, too."""
    k, x, v = rng.choice((3, 4)), rng.randint(6, 16), rng.randint(6, 16)
    b, more, n = rng.randint(0, 2), rng.randint(-2, 0), rng.choice((1, 1, 2, 3))
    y = (2 * (v - 1) + k - b + more, 2 * (x - 1) + k - b)
    if rng.random() < 0.3:
        x, v = rng.randint(6, 9), rng.randint(5, 9)
        y = (2 * (v - 1) + k - b, 2 * (x - 1) + k - b)
        axes = f"x3x{v}x{x} k2x{k}x{k} s1x2x2 d1x1x1 b0x{b}x{b} y4x{y[0]}x{y[1]}"
        return Problem.parse(f"scatter f32 NXC GIOX n1 g1 i1 o1 {axes}")
    return Problem.parse(f"scatter f32 NXC GIOX n{n} g1 i1 o1 x{v}x{x} k{k}x{k} s2x2 d1x1 b{b}x{b} y{y[0]}x{y[1]}")


def _for_gradient(rng: Random, layout: str) -> Problem:
    channels = (1, 2, 3, 4, 5, 6, 8, 10, 12, 13, 14, 16, 17, 18, 31, 32, 33, 40)
    limits = {"max_macs": 400_000, "max_elements": 30_000}
    problem = random_problem(rng, dtypes=("f32",), data_layouts=(layout,), channels=channels, **limits)  # type: ignore[arg-type]
    return replace(problem, groups=1) if rng.random() < 0.8 else problem


def _for_bias(rng: Random) -> Problem:
    """Results of many pixels: a sum is cut into segments, lines and tasks."""
    x = rng.choice((3, 70, 1_500, 9_000, 40_000))
    layout, channels = rng.choice(("NCX", "NXC")), rng.choice((1, 2, 3, 16, 17))
    return Problem.parse(f"scatter f32 {layout} GIOX n{rng.choice((1, 2))} g1 i1 o{channels} x{x} k1 s1 d1 b0 y{x}")


def subjects(count: int) -> list[Subject]:
    """Kernels that enough checks use; recorded while the checks run on the right code, which must pass."""
    found: dict[str, Subject] = {}
    used: set[str] = set()
    library = engine.kernel_library

    def recorded(key: str, build_ir: Callable[[], str], isa: Any, symbols: Any, **options: Any) -> Any:
        if key != "pool":
            if key not in found:
                found[key] = Subject(key, build_ir(), isa, tuple(symbols))
            used.add(key)
        return library(key, build_ir, isa, symbols, **options)

    with mock.patch.object(engine, "kernel_library", recorded):
        for check in suite(count):
            _forget()
            used.clear()
            if fault := check():
                raise AssertionError(f"the right code fails {check}: {fault}")
            for key in used:
                found[key].checks.append(check)
    _forget()
    return [max((s for s in found.values() if s.key.startswith(name)), key=_checked) for name in FAMILIES]


def _checked(subject: Subject) -> int:
    return len(subject.checks)


def _forget() -> None:
    """Plans that hold addresses of code."""
    program.program.cache_clear()
    gradients._ready.cache_clear()


# --- mutants --------------------------------------------------------------------------------------------------------

SURVIVED, SAME, REFUSED, HARMLESS = "survived", "the same code", "refused by LLVM", "harmless: "


# What is known of mutants that nothing can catch: (part of the description, reason). The numbers are those of LLVM's
# values: after a change of the code generator a survivor is unknown again, and has to be looked at.
KNOWN = (
    ('in pack: %".80"', "only the zeros behind a panel's last column change; nothing computed from them is stored"),
    ('in run: %".470"', "a tap outside the source is left out to save time only: the strip holds zeros there"),
    ('in run: %".508"', "taps outside the source are left out to save time only: the strip holds zeros there"),
    ('in run: %".924"', "one address more at the end of a row of tiles: the next row, or nobody, replaces it"),
    ('in run: %".1293"', "one tile more at the end of a row: all its outputs lie beyond the box and are not stored"),
    ('in reduce: %".20"', "a task also sums the segments of the next one: the same numbers, written twice"),
    ('in fold: %".10"', "another field that, for this function, always holds the same number"),
)


def reached(subject: Subject, function: str) -> bool:
    """Whether some check dies when this function begins with a trap."""
    head = re.compile(rf'^define .*@"?{re.escape(function)}"?\(.*\n?\{{\n\S+:\n', re.MULTILINE)
    text, count = head.subn(lambda match: match[0] + "  call void @llvm.trap()\n", subject.text, count=1)
    if not count:
        raise AssertionError(f"{subject.key} has no function {function}")
    text += "\ndeclare void @llvm.trap()\n"
    answer = forks.alone(partial(tried, subject, text, b""), seconds=120)
    return answer != SURVIVED


def verdict(subject: Subject, mutant: Mutant, original: bytes) -> str:
    """In a child: what became of one mutant."""
    return tried(subject, mutant.applied(subject.text), original)


def tried(subject: Subject, text: str, original: bytes) -> str:
    """In a child: what the checks say of a changed module."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
    try:
        obj = engine.compile_object(text, subject.isa)
    except RuntimeError:
        return REFUSED
    if obj == original:
        return SAME
    addresses = elf.place(obj, subject.symbols)
    store.memory[f"{subject.isa.name} {subject.key}"] = engine.Loaded(addresses, "cold", 0.0)
    _forget()
    for check in subject.checks:
        try:
            if fault := check():
                return f"caught: {fault}"
        except Exception as error:
            return f"caught: {type(error).__name__}"
    return SURVIVED


def judged(subject: Subject, count: int, seed: int) -> Iterator[tuple[Mutant, str]]:
    """Verdicts on `count` mutants that are code of their own, in functions that the checks reach."""
    original = engine.compile_object(subject.text, subject.isa)
    Random(seed).shuffle(subject.checks)
    functions = {mutant.function for mutant in mutants(subject.text)}
    subject.unreached = sorted(function for function in functions if not reached(subject, function))
    candidates = iter([m for m in sample(subject.text, 9 * count, seed) if m.function not in subject.unreached])
    done = 0
    while done < count and (mutant := next(candidates, None)) is not None:
        answer = forks.alone(partial(verdict, subject, mutant, original), seconds=120)
        if answer in (SAME, REFUSED):
            continue
        reason = next((why for part, why in KNOWN if part in str(mutant)), "")
        if answer == SURVIVED and reason:
            answer = HARMLESS + reason
        else:
            done += 1
        yield mutant, answer


def shares(chosen: list[Subject], total: int) -> list[int]:
    """How many mutants each kernel gets: small ones, whose every line would be drawn, fewer."""
    weights = [min(_WEIGHT, len(mutants(subject.text))) for subject in chosen]
    ends = [total * sum(weights[: i + 1]) // sum(weights) for i in range(len(chosen))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def run(tally: Tally, full: bool) -> None:
    os.environ["UNSTRIDE_NUM_THREADS"] = "2"
    chosen = subjects(CHECKS[full])
    kinds: Counter[str] = Counter()
    survivors: list[str] = []
    harmless: list[str] = []
    for index, (subject, count) in enumerate(zip(chosen, shares(chosen, MUTANTS[full]), strict=True)):
        for mutant, answer in judged(subject, count, index):
            if reason := answer.removeprefix(HARMLESS) if answer.startswith(HARMLESS) else "":
                harmless.append(f"{subject.key}, {mutant} ({reason})")
                continue
            kinds[mutant.kind] += 1
            tally.add(f"mutants of {subject.key}")
            if answer == SURVIVED:
                survivors.append(f"{subject.key}, {mutant}")
                print(f"  survived: {survivors[-1]}", flush=True)
        if subject.unreached:
            tally.note(f"{subject.key}: no check reaches {', '.join(subject.unreached)}")
    total = kinds.total()
    said = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    tally.note(f"mutants: {total - len(survivors)} of {total} caught ({said}), over {len(chosen)} kernels")
    for what, listed in (("survivor", survivors), ("drawn and harmless, not counted", harmless)):
        for line in listed:
            tally.note(f"{what}: `{line}`")
    if len(survivors) > (1 - _SHARE) * total:
        tally.add("share caught", f"{len(survivors)} of {total} survive", runs=0)


if __name__ == "__main__":
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    main("mutants", run, __doc__)
