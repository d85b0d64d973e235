"""Mutants of the generated code: 400 kernels with one fault each, held against a slice of the suite.

A mutant is one changed line of a kernel's LLVM IR: a loop bound, a mask, an offset, a stride. It is compiled and run in
a child process, between inaccessible pages, on integer cases that use this kernel; it is caught if a result is wrong,
an unwritten element shows, a signal comes, or it never ends. Mutants that LLVM refuses, or compiles to the very same
code, are drawn again. Survivors are printed.
"""

from __future__ import annotations

import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from tests.compiler.cases import Case, draw
from tests.compiler.guard import Room
from tests.gradients.arrays import by_position, integers
from tests.hard import forks
from tests.hard.mutations import Mutant, sample
from tests.hard.tally import Tally, main
from unstride.cases import random_problem
from unstride.problem import Problem
from unstride.reference import DTYPES
from unstride.runtime import cache as store
from unstride.runtime import elf, engine, gradients, pool, program

MUTANTS = (6, 400)
CASES = (60, 900)
_SHARE = 0.99
_CPU_SECONDS = 8
_FEWEST_CHECKS = 20
_MOST_CHECKS = 160

Check = Callable[[], str]


@dataclass
class Subject:
    """One kernel: how it is built, and the checks that run it."""

    key: str
    text: str
    isa: Any
    symbols: tuple[str, ...]
    checks: list[Check] = field(default_factory=list)


# --- the slice of the suite -----------------------------------------------------------------------------------------


@cache
def room() -> Room:
    return Room()


def walled(case: Case, at_end: bool) -> str:
    return room().run(case, at_end=at_end)


def weight_gradient(problem: Problem, seed: int) -> str:
    small, large = integers(problem, seed)
    out = np.full(problem.filter_shape, np.nan, DTYPES[problem.dtype])
    gradients.filter_gradient(problem, small, large, threads=2, out=out)
    wanted = by_position(problem, small, large).astype(out.dtype)
    return "" if np.array_equal(out, wanted) else "a wrong weight gradient"


def bias_gradient(problem: Problem, seed: int) -> str:
    delta = np.random.default_rng(seed).integers(-2, 3, problem.result_shape).astype(DTYPES[problem.dtype])
    axes = (0, *range(2, delta.ndim)) if problem.data_layout == "NCX" else tuple(range(delta.ndim - 1))
    wanted = delta.astype(np.float64).sum(axis=axes).astype(delta.dtype)
    return "" if np.array_equal(gradients.bias_gradient(problem, delta), wanted) else "a wrong bias gradient"


def suite(count: int) -> Iterator[Check]:
    """Cases of every algorithm in the types that the subjects have."""
    rng = Random("mutants")
    for index in range(count):
        case = draw(rng, few_kernels=True)
        while case.problem.dtype not in ("f32", "f16") or case.problem.macs > 150_000:
            case = draw(rng, few_kernels=True)
        yield partial(walled, case, bool(index % 2))
    for index, text in enumerate(_LAYERS):
        for threads in (1, 2):
            yield partial(walled, Case(Problem.parse(text), "none", True, threads, 40_000 * (index % 2), index), True)
    for index in range(count // 4):
        problem = random_problem(rng, dtypes=("f32",), max_macs=30_000, max_elements=4_000)
        yield partial(weight_gradient, problem, index)
        yield partial(bias_gradient, problem, index)


def _layer(layout: str, n: int, ci: int, co: int, x: int, k: int, s: int, extra: int) -> str:
    y = s * (x - 1) + k - 2
    return f"scatter f32 {layout} GIOX n{n} g1 i{ci} o{co} x{x}x{x} k{k}x{k} s{s}x{s} d1x1 b1x1 y{y + extra}x{y}"


# Layers that algorithms for larger maps take.
_LAYERS = tuple(
    _layer(layout, *sizes)
    for layout in ("NXC", "NCX")
    for sizes in (
        (1, 16, 64, 7, 4, 2, 0),
        (2, 17, 65, 9, 4, 2, 1),
        (1, 33, 80, 12, 3, 2, 0),
        (3, 16, 64, 10, 3, 1, 0),
        (1, 20, 70, 19, 4, 2, -1),
        (1, 5, 3, 20, 4, 2, 0),
        (2, 3, 2, 33, 3, 2, 1),
        (1, 7, 1, 40, 3, 1, -1),
    )
)


def subjects(count: int) -> list[Subject]:
    """Kernels that enough checks use; recorded while the checks run on the right code, which must pass."""
    found: dict[str, Subject] = {}
    used: set[str] = set()
    library = engine.kernel_library

    def recorded(key: str, build_ir: Callable[[], str], isa: Any, symbols: Any, **options: Any) -> Any:
        if key != "pool":
            found.setdefault(key, Subject(key, build_ir(), isa, tuple(symbols)))
            used.add(key)
        return library(key, build_ir, isa, symbols, **options)

    with mock.patch.object(engine, "kernel_library", recorded), pool.threads(1):
        for check in suite(count):
            _forget()
            used.clear()
            if fault := check():
                raise AssertionError(f"the right code fails {check}: {fault}")
            for key in used:
                found[key].checks.append(check)
    _forget()
    return [subject for subject in found.values() if len(subject.checks) >= min(_FEWEST_CHECKS, count // 10)]


def _forget() -> None:
    """Plans that hold addresses of code."""
    program.program.cache_clear()
    gradients._ready.cache_clear()


# --- mutants --------------------------------------------------------------------------------------------------------

SURVIVED, SAME, REFUSED = "survived", "the same code", "refused by LLVM"


def verdict(subject: Subject, mutant: Mutant, original: bytes) -> str:
    """In a child: what became of one mutant."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
    try:
        obj = engine.compile_object(mutant.applied(subject.text), subject.isa)
    except RuntimeError:
        return REFUSED
    if obj == original:
        return SAME
    addresses = elf.place(obj, subject.symbols)
    store.memory[f"{subject.isa.name} {subject.key}"] = engine.Loaded(addresses, "cold", 0.0)
    _forget()
    Random(mutant.line).shuffle(subject.checks)
    for check in subject.checks[:_MOST_CHECKS]:
        try:
            if fault := check():
                return f"caught: {fault}"
        except Exception as error:
            return f"caught: {type(error).__name__}"
    return SURVIVED


def judged(subject: Subject, count: int, seed: int) -> Iterator[tuple[Mutant, str]]:
    """Verdicts on `count` mutants that are code of their own."""
    original = engine.compile_object(subject.text, subject.isa)
    candidates = iter(sample(subject.text, 4 * count, seed))
    done = 0
    while done < count and (mutant := next(candidates, None)) is not None:
        answer = forks.alone(partial(verdict, subject, mutant, original), seconds=120)
        if answer in (SAME, REFUSED):
            continue
        done += 1
        yield mutant, answer


def run(tally: Tally, full: bool) -> None:
    os.environ["UNSTRIDE_NUM_THREADS"] = "2"
    chosen = subjects(CASES[full])
    kinds: Counter[str] = Counter()
    survivors: list[str] = []
    total = 0
    for index, subject in enumerate(chosen):
        count = (MUTANTS[full] - total) // (len(chosen) - index)
        for mutant, answer in judged(subject, count, index):
            total += 1
            kinds[mutant.kind] += 1
            tally.add(f"mutants of {subject.key}")
            if answer == SURVIVED:
                survivors.append(f"{subject.key}, {mutant}")
                print(f"  survived: {survivors[-1]}", flush=True)
    caught = total - len(survivors)
    tally.note(
        f"{caught} of {total} caught, over {len(chosen)} kernels: " + ", ".join(f"{n} {k}" for k, n in kinds.items())
    )
    for survivor in survivors:
        tally.note(f"survivor: {survivor}")
    if caught < _SHARE * total:
        tally.add("share caught", f"{caught} of {total} is below {_SHARE:.0%}", runs=0)


if __name__ == "__main__":
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    main("mutants", run, __doc__)
