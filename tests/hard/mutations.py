"""Single faults in LLVM IR text: loop bounds, masks, offsets and strides, one line changed at a time.

Changes that cannot matter, whatever the code is for, are not planted:

* at a tie, both operands of a minimum or maximum are the same;
* whether a loop is entered at all, or whether there is anything to do (`> 0`), is turned around, not relaxed: relaxing
  it changes only what has no turns;
* so is whether a row of a tile of sums (`sum_*`) counts: most rows of a tile are never the last;
* a loop's step only grows: a smaller one repeats what is done, which copying and filling forgive;
* a prefetch may fetch anything; the lanes of a sum over lanes may come in any order;
* the choice among ways that give the same numbers (`tile_*`: are all columns stored? `transpose_*`: which block fits?
  `line_*`: which width holds what is left?), and the last block of a transposition, which may be done twice;
* `zero` and `weave` may run over, by contract;
* the pitch of lines in scratch, rounded up to vectors: any that all sides share, and that is long enough, is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

__all__ = ["Mutant", "mutants", "sample"]


@dataclass(frozen=True)
class Mutant:
    """One changed line of a module."""

    kind: str
    function: str
    line: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.function}: {self.old.strip()}  ->  {self.new.strip()}"

    def applied(self, text: str) -> str:
        lines = text.split("\n")
        assert lines[self.line] == self.old
        lines[self.line] = self.new
        return "\n".join(lines)


_DEFINE = re.compile(r'^define .*@"?([\w.]+)"?\(')
_NAME = re.compile(r"^ *(%\S+) = ")
_COMPARE = re.compile(r"= icmp (\w+) i64 (\S+), (\S+)$")
_RELAXED = {"slt": "sle", "sle": "slt", "sgt": "sge", "sge": "sgt", "eq": "ne", "ne": "eq"}
_SELECT = re.compile(r"(select +i1 \S+, i64 )(\S+)(, i64 )(\S+)")
_ENTERS = re.compile(r"^ *br i1 (%\S+), label %\"?(?:loop|fold)")
_GEP = re.compile(r"(getelementptr (?:inbounds )?[\w<> ]+, ptr \S+, i64 )(-?\d+)$")
_GEP_VARIABLE = re.compile(r"(getelementptr (?:inbounds )?)(\w+)(, ptr \S+, i64 %\S+)$")
_CONSTANT = re.compile(r"(= (?:add|sub|mul)(?: nsw)? i64 \S+, )(-?\d+)$")
_SUM = re.compile(r"= (add|sub)( nsw)? i64 (\S+), (%\S+)$")
_PRODUCT = re.compile(r"= mul( nsw)? i64 (\S+), (%\S+)$")
_MASK = re.compile(r"(= and i64 \S+, )(-2)$")
_LOGIC = re.compile(r"= (and|or) i1 ")
_SHUFFLE = re.compile(r"shufflevector <[^>]+> (\S+), <[^>]+> (\S+), <[^>]+> <(i32 \d+(?:, i32 \d+)+)>$")
_WIDER = {"float": "i64", "i64": "i128", "half": "i32", "i16": "i32", "double": "i32"}


def mutants(text: str) -> list[Mutant]:
    """Every single fault that these rules can plant."""
    lines = text.split("\n")
    prefetched = {match[1] for line in lines if (match := re.search(r"@\"?llvm\.prefetch\S*\(ptr (%[^,]+),", line))}
    found, function = [], ""
    for number, line in enumerate(lines):
        if match := _DEFINE.match(line):
            function = match[1]
        name = _NAME.match(line)
        if function == "zero" or (name and name[1] in prefetched):
            continue
        around = [*lines[max(0, number - 1) : number], "", *lines[number + 1 : number + 2], ""]
        changed = _changed(function, line, around[0], around[2])
        found += [Mutant(kind, function, number, line, new) for kind, new in changed if new != line]
    return found


def _changed(function: str, line: str, before: str, after: str) -> Iterator[tuple[str, str]]:
    chooses = function.startswith(("tile_", "transpose_", "line_"))  # between ways that give the same numbers
    if (match := _COMPARE.search(line)) and match[1] in _RELAXED:
        yield from _bounds(function, line, match, before, after)
    if match := _SELECT.search(line):
        yield "bound", line.replace(match[0], match[1] + match[4] + match[3] + match[2], 1)
    if match := _GEP.search(line):
        yield "offset", line.replace(match[0], f"{match[1]}{int(match[2]) + 1}", 1)
    if match := _CONSTANT.search(line):
        yield "offset", line.replace(match[0], f"{match[1]}{int(match[2]) + 1}", 1)
        if not _is_step(line, after):
            yield "offset", line.replace(match[0], f"{match[1]}{int(match[2]) - 1}", 1)
    if match := _SUM.search(line):
        yield "offset", line.replace(f"= {match[1]}", "= sub" if match[1] == "add" else "= add", 1)
        yield "offset", line.replace(match[0], f"= add i64 {match[3]}, 0", 1)
    if match := _PRODUCT.search(line):
        yield "stride", line.replace("= mul", "= add", 1)
        yield "stride", line.replace(match[0], f"= add i64 {match[2]}, 0", 1)
    if (match := _GEP_VARIABLE.search(line)) and match[2] in _WIDER:
        yield "stride", line.replace(match[0], match[1] + _WIDER[match[2]] + match[3], 1)
    if match := _MASK.search(line):
        yield "mask", line.replace(match[0], f"{match[1]}-1", 1)
    if (match := _LOGIC.search(line)) and not chooses:
        yield "mask", line.replace(f"= {match[1]} i1", f"= {'or' if match[1] == 'and' else 'and'} i1", 1)
    if (match := _SHUFFLE.search(line)) and match[1] != match[2]:
        lanes = match[3].split(", ")
        yield "mask", line.replace(match[3], ", ".join([*lanes[1:], lanes[0]]), 1)


def _bounds(function: str, line: str, match: re.Match[str], before: str, after: str) -> Iterator[tuple[str, str]]:
    operator, left, right = match.groups()
    chosen = _SELECT.search(after)
    if chosen and {left, right} == {chosen[2], chosen[4]}:
        return  # a minimum or a maximum
    name, entered = _NAME.match(line), _ENTERS.match(after)
    if entered and name and entered[1].rstrip(",") == name[1]:
        again = (made := _NAME.match(before)) is not None and made[1] == left  # the step was taken just before
        if not again:
            yield "bound", line.replace(f"icmp {operator} ", "icmp sge ", 1)
            return
        if function.startswith(("transpose_", "weave")):
            return
    elif function.startswith(("tile_", "transpose_", "line_")):
        return
    counts = function.startswith("sum_") and right.isdigit()
    if operator == "sgt" and (counts or right == "0"):
        yield "bound", line.replace("icmp sgt ", "icmp sle ", 1)
        return
    yield "bound", line.replace(f"icmp {operator} ", f"icmp {_RELAXED[operator]} ", 1)


def _is_step(line: str, after: str) -> bool:
    """Whether the sum is compared at once, to see if the loop goes on."""
    name, compared = _NAME.match(line), _COMPARE.search(after)
    return bool(name and compared and compared[2] == name[1])


def sample(text: str, count: int, seed: int) -> list[Mutant]:
    """`count` of the mutants of a module, each kind and each function as often as the others as far as possible."""
    rng = Random(seed)
    groups: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in mutants(text):
        groups.setdefault((mutant.kind, mutant.function), []).append(mutant)
    for group in groups.values():
        rng.shuffle(group)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(groups.values()):
        for group in groups.values():
            if group and len(chosen) < count:
                chosen.append(group.pop())
    return chosen
