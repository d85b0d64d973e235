"""Mutants of the generated code: 400 kernels with one fault each, held against a slice of the suite.

A mutant is one changed line of a kernel's LLVM IR: a loop bound, a mask, an offset, a stride. It is compiled and run in
a child process by checks that use this kernel (`tests.hard.checks`); it is caught if a result is wrong, an unwritten
element shows, a task leaves its place, a fault's signal comes, or it computes without end. A child that ends in another
way, out of time without having computed or killed from outside, says nothing about its mutant, which has survived.

Which mutants are drawn depends on the code at hand and on a seed, never on what becomes of them: `tests.hard.mutations`
says which lines are changed and how. Those that LLVM refuses, or compiles to the very same object, are no mutants,
which is known before anything runs. All others count. Survivors are listed with the place that generates their line,
and with the reason if that is known.
"""

from __future__ import annotations

import faulthandler
import os
import re
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from random import Random
from typing import Any
from unittest import mock

from tests.hard import forks
from tests.hard.checks import FAMILIES, Check, checks_of
from tests.hard.mutations import Mutant, mutants, sample
from tests.hard.origins import Origins
from tests.hard.tally import Tally, main
from unstride.runtime import cache as store
from unstride.runtime import elf, engine, gradients, program

MUTANTS = (10, 400)
CHECKS = (12, 900)
_MOST_CHECKS = 2_000
_SHARE = 0.99
_WEIGHT = 500
SURVIVED, SAME, REFUSED = "survived", "the same code", "refused by LLVM"
# What a fault in the code brings on itself. SIGXCPU: the processor time of several runs was used up.
_FAULTS = frozenset(f"died of SIG{name}" for name in ("SEGV", "BUS", "ILL", "FPE", "TRAP", "ABRT", "XCPU"))

# Why nothing can catch some mutants: (kernel and function, what the generator's line says, reason). This explains
# survivors; it changes neither what is drawn nor what is counted.
REASONS = (
    (
        "depthwise* part_*",
        "self.kept.store_between(target, v * self.lanes, self._epilogue(value, bias[v]), low, high)",
        "the columns of a depthwise panel begin at 0, and so does what is stored of its last vector",
    ),
    (
        "direct f32 nxc *2-3 run",
        "in_place = e.b.and_(e.b.and_(rows_inside, columns_inside), self.get(Job.IN_PLACE).differs(0))",
        "what may be read where it lies is copied, and the other way round; checked for tiles of two vectors",
    ),
    (
        "* padded",
        "end = e.max(high & -lanes, first)",
        "vectors in the middle are loaded under a mask, too, or those of a short row twice",
    ),
    (
        "* padded",
        "first = (low + (lanes - 1)) & -lanes",
        "the first vector is loaded under a mask even if it is whole",
    ),
    (
        "* under_mask",
        "for i in e.range(start, stop, numbers.lanes):",
        "a vector too many is filled again, with the middle or the next row, or lies in the room behind the strip",
    ),
    (
        "across* line_*",
        "left = (count - whole + (self.lanes - 1)) // self.lanes",
        "a vector too many lies behind the line, or is moved back and computes the same sums again",
    ),
    (
        "across* line_*",
        "for x in e.range(0, wide_end, step):",
        "a tile too many lies behind the line, or is moved back and computes the same sums again",
    ),
    (
        "folded* line_*",
        "whole = (count // step) * step",
        "a tile too many lies behind the line, which has room for it",
    ),
    (
        "winograd* run",
        "in_v, in_x = e.b.and_(v >= v_low, v + v_last < v_high), e.b.and_(x >= x_low, x + x_last < x_high)",
        "a tile that is inside is stored element by element, as those at an edge are",
    ),
    (
        "w*F(* run",
        "for _ in e.range(count):",
        "what the next task reads is fetched earlier, or is not",
    ),
    (
        "w*F(* run",
        "over = of_run.get().equals(1)",
        "something else is fetched than what the next task reads",
    ),
    (
        "whole maps F(3,2)* run",
        "line = row * self.spread[0] + v",
        "with two taps there is one residue of positions, unless a kernel of stride 1 is dilated, which is not drawn",
    ),
    (
        "spread* rows_*",
        "with e.when(end < self.positions):",
        "the end of a row is computed once more",
    ),
    (
        "across* run",
        "self.x1 * step - begin <= self.get(Job.RESULT_X_SIZE),",
        "lines wait in scratch and are copied",
    ),
    (
        "* run",
        "off_line = (first & (LINE_BYTES - 1)) | (apart & (LINE_BYTES // size_of(self.numbers.stored) - 1))",
        "a result goes past the caches, or does not",
    ),
    (
        "rows* stream",
        "head = e.min(((0 - address) & (LINE_BYTES - 1)) // size, count)",
        "a pixel is at least one line, which is more than its head; what is not streamed is stored",
    ),
    (
        "direct* run",
        "for column in e.range(0, width, lanes):",
        "a vector too many lies in the next pixel, which is written later, or behind the strip",
    ),
    (
        "direct* run",
        "for pixel in e.range(self.images * self.out_rows * self.out_columns):",
        "a pixel too many lies in the room behind the strip",
    ),
    (
        "rows* stream",
        "for i in e.range(start, count):",
        "an element too many of the head is the first of a line, and stored again with it",
    ),
    (
        "spread* rows_*",
        "inside, low = e.b.and_(t >= self.low, inside), self.low - t",
        "a row begins with its first element, but where only a part of it is visited",
    ),
    (
        "spread* rows_*",
        "end = (self.positions + (long // 2 - 1)) // long * long if most > 1 else self.positions",
        "what is left is done at once, or in half a turn",
    ),
    (
        "spread* rows_*",
        "self.numbers.store_between(target, first, value, start, high)",
        "one of several turns ends with its row: what does not exist there is in its last vector",
    ),
    (
        "spread* run",
        "with e.when(address.differs(self.following.get())):",
        "what waits is stored, and the rest of its line by itself",
    ),
    (
        "spread* scatter* run",
        "self.rows = (self.v1 - self.v0 - 1) * self.get(Job.SOURCE_V_STEP) + self.get(Job.SOURCE_V_SPAN)",
        "source rows of a scatter are taken one by one",
    ),
    (
        "spread* run",
        "several = e.b.and_(self.positions > 1, index + 1 < end)",
        "the last channel, or one that stays, is filled in again, into the other strip",
    ),
    (
        "spread* run",
        "return n_block * self.get(Job.IMAGES_PER_UNIT), v, x, rest",
        "a unit is one image",
    ),
    (
        "winograd* pack",
        "row.append(e.b.select(step < 0, zero, value))",
        "the kernel's first element is never this tap of a phase",
    ),
    (
        "gradient dense* sum_*",
        "height, pitch = self.args.int(TileArgs.HEIGHT), self.args.int(TileArgs.SUMS_PITCH)",
        "where sums are begun, a row too many is the first of the next item, which is begun later",
    ),
)


@dataclass
class Subject:
    """One kernel: how it is built, and the checks that run it."""

    key: str
    text: str
    isa: Any
    symbols: tuple[str, ...]
    origins: Origins
    checks: list[Check] = field(default_factory=list)
    meant: Counter[str] = field(default_factory=Counter)  # how many of them are checks of a family
    seconds: float = 30.0  # what all checks take on the right code; more than that until it is known


def subjects(count: int) -> list[Subject]:
    """The kernel of each family that most of its checks use; recorded while they run on the right code.

    Of its own checks: those of Winograd load a direct kernel, too, but hardly ever run it.
    """
    found: dict[str, Subject] = {}
    used: set[str] = set()
    library = engine.kernel_library

    def recorded(key: str, build_ir: Callable[[], str], isa: Any, symbols: Any, **options: Any) -> Any:
        if key != "pool":
            if key not in found:
                with Origins().noted() as origins:
                    text = build_ir()
                found[key] = Subject(key, text, isa, tuple(symbols), origins)
            used.add(key)
        return library(key, build_ir, isa, symbols, **options)

    with mock.patch.object(engine, "kernel_library", recorded):
        for meant, check in ((family.key, check) for family in FAMILIES for check in checks_of(family, count)):
            _forget()
            used.clear()
            if fault := check():
                raise AssertionError(f"the right code fails {check}: {fault}")
            for key in used:
                found[key].checks.append(check)
                found[key].meant[meant] += 1
    _forget()
    chosen = []
    for family in FAMILIES:
        fitting = [s for s in found.values() if fnmatch(s.key, family.key) and s not in chosen]
        if not fitting and family.key.endswith("2-3"):
            continue  # this instruction set has tiles of two vectors only
        chosen.append(max(fitting, key=lambda subject: subject.meant[family.key]))
    return chosen


def _forget() -> None:
    """Plans that hold addresses of code."""
    program.program.cache_clear()
    gradients._ready.cache_clear()


def tried(subject: Subject, text: str, original: bytes) -> str:
    """In a child: what the checks say of a changed module."""
    faulthandler.disable()  # most mutants die
    allowed = int(15 + 4 * subject.seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (allowed, allowed + 60))  # at the second limit the signal would be SIGKILL
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
    start = time.process_time()
    for check in subject.checks:
        try:
            if fault := check():
                return f"caught: {fault}"
        except (MemoryError, OSError) as error:  # the machine's, not the mutant's
            return f"met {type(error).__name__}: {error}"
        except Exception as error:
            return f"caught: {type(error).__name__}: {error}"
    return f"{SURVIVED} {time.process_time() - start}"


def judged(subject: Subject, count: int, seed: int, known: set[tuple[str, ...]]) -> Iterator[tuple[Mutant, str]]:
    """Verdicts on the first `count` of a kernel's shuffled mutants that are code of their own.

    Kernels share functions: the same change of the same function is one mutant, in whichever kernel it came first.
    """
    Random(seed).shuffle(subject.checks)
    del subject.checks[_MOST_CHECKS:]
    control = forks.alone(partial(tried, subject, subject.text, b""), seconds=600)
    if not control.startswith(SURVIVED):
        raise AssertionError(f"{subject.key}: the right code is caught, too: {control}")
    subject.seconds = float(control.removeprefix(SURVIVED))
    original, done = engine.compile_object(subject.text, subject.isa), 0
    for mutant in sample(subject.text, seed):
        if done == count:
            return
        change = (mutant.body(subject.text), mutant.old, mutant.new)
        if change in known:
            continue
        known.add(change)
        answer = forks.alone(partial(tried, subject, mutant.applied(subject.text), original), seconds=600)
        if answer not in (SAME, REFUSED):
            done += 1
            yield mutant, verdict(answer)


def verdict(answer: str) -> str:
    """How a mutant was caught, or that it survived; by what is said of it, or how its process ended."""
    if answer.startswith("caught: ") or answer in _FAULTS:
        return answer
    return SURVIVED if answer.startswith(SURVIVED) else f"{SURVIVED}, for its process {answer}"


def shares(chosen: list[Subject], total: int) -> list[int]:
    """How many mutants each kernel gets: small ones, whose every line would be drawn, fewer."""
    weights = [min(_WEIGHT, len(mutants(subject.text))) for subject in chosen]
    ends = [total * sum(weights[: i + 1]) // sum(weights) for i in range(len(chosen))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def survivor(subject: Subject, mutant: Mutant, answer: str) -> str:
    """One line about a survivor: what was changed, by whom the line was written, why it may not matter."""
    place = subject.origins.of(mutant.function, mutant.old)
    name = f"{subject.key} {mutant.function}"
    known = (why for kernels, line, why in REASONS if line == place.text and fnmatch(name, kernels))
    why = answer if answer != SURVIVED else next(known, "not explained")
    return f"{subject.key}, `{mutant}`, from `{place.text}` in {place}: {why}"


def _end(answer: str) -> str:
    """By what a mutant was caught, in a word: a wrong result, the name of an exception or of a signal."""
    raised = re.match(r"caught: (\w+(?:Error|Exception)): |died of (SIG\w+)$", answer)
    return (raised[1] or raised[2]) if raised else "wrong result"


def run(tally: Tally, full: bool, seed: int = 0) -> None:
    os.environ["UNSTRIDE_NUM_THREADS"] = "2"
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    chosen = subjects(CHECKS[full])
    kinds: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    survivors: list[str] = []
    known: set[tuple[str, ...]] = set()
    for index, (subject, count) in enumerate(zip(chosen, shares(chosen, MUTANTS[full]), strict=True)):
        for mutant, answer in judged(subject, count, 100 * seed + index, known):
            kinds[mutant.kind] += 1
            tally.add(f"mutants of {subject.key}")
            if answer.startswith(SURVIVED):
                survivors.append(survivor(subject, mutant, answer))
                print(f"  survived: {survivors[-1]}", flush=True)
            else:
                ends[_end(answer)] += 1
    total = kinds.total()
    said = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    tally.note(f"mutants: {total - len(survivors)} of {total} caught ({said}), over {len(chosen)} kernels")
    tally.note("mutants were caught by: " + ", ".join(f"{end} {n}" for end, n in ends.most_common()))
    for line in survivors:
        tally.note(f"survivor: {line}")
    if len(survivors) > (1 - _SHARE) * total:
        tally.add("share caught", f"{len(survivors)} of {total} survive", runs=0)


if __name__ == "__main__":
    main("mutants", run, __doc__, seeded=True)
