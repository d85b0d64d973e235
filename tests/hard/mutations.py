"""Single faults in LLVM IR text: loop bounds, masks, offsets and strides, one line changed at a time."""

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
_COMPARE = re.compile(r"= icmp (\w+) i64 ")
_RELAXED = {"slt": "sle", "sle": "slt", "sgt": "sge", "sge": "sgt", "eq": "ne", "ne": "eq"}
_MINMAX = re.compile(r"icmp s[lg][te] i64 (\S+), (\S+)")
_SELECT = re.compile(r"(select +i1 \S+, i64 )(\S+)(, i64 )(\S+)")
_GEP = re.compile(r"(getelementptr (?:inbounds )?[\w<> ]+, ptr \S+, i64 )(-?\d+)$")
_GEP_VARIABLE = re.compile(r"(getelementptr (?:inbounds )?)(\w+)(, ptr \S+, i64 %\S+)$")
_CONSTANT = re.compile(r"(= (?:add|sub|mul)(?: nsw)? i64 \S+, )(-?\d+)$")
_SUM = re.compile(r"= (add|sub)( nsw)? i64 (\S+), (%\S+)$")
_PRODUCT = re.compile(r"= mul( nsw)? i64 (\S+), (%\S+)$")
_MASK = re.compile(r"(= and i64 \S+, )(-\d+)$")
_LOGIC = re.compile(r"= (and|or) i1 ")
_SHUFFLE = re.compile(r"(shufflevector .*<)(i32 \d+(?:, i32 \d+)+)(>.*)$")


def mutants(text: str) -> list[Mutant]:
    """Every single fault that these rules can plant."""
    lines = text.split("\n")
    found, function = [], ""
    for number, line in enumerate(lines):
        if match := _DEFINE.match(line):
            function = match[1]
        following = lines[number + 1] if number + 1 < len(lines) else ""
        found += [Mutant(kind, function, number, line, new) for kind, new in _changed(line, following) if new != line]
    return found


def _changed(line: str, following: str) -> Iterator[tuple[str, str]]:
    if (match := _COMPARE.search(line)) and match[1] in _RELAXED and not _is_minimum(line, following):
        yield "bound", line.replace(f"icmp {match[1]} ", f"icmp {_RELAXED[match[1]]} ", 1)
    if match := _SELECT.search(line):
        yield "bound", line.replace(match[0], match[1] + match[4] + match[3] + match[2], 1)
    if match := _GEP.search(line):
        yield "offset", line.replace(match[0], f"{match[1]}{int(match[2]) + 1}", 1)
    if match := _CONSTANT.search(line):
        yield "offset", line.replace(match[0], f"{match[1]}{int(match[2]) + 1}", 1)
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
        yield "mask", line.replace(match[0], f"{match[1]}{int(match[2]) * 2}", 1)
    if match := _LOGIC.search(line):
        yield "mask", line.replace(f"= {match[1]} i1", f"= {'or' if match[1] == 'and' else 'and'} i1", 1)
    if match := _SHUFFLE.search(line):
        lanes = match[2].split(", ")
        yield "mask", line.replace(match[2], ", ".join([*lanes[1:], lanes[0]]), 1)


_WIDER = {"float": "i64", "i64": "i32", "half": "i32", "i16": "i32", "double": "i32"}


def _is_minimum(line: str, following: str) -> bool:
    """A comparison that chooses between its own operands: at a tie both are the same, so nothing would change."""
    compared, chosen = _MINMAX.search(line), _SELECT.search(following)
    return bool(compared and chosen and {compared[1].rstrip(","), compared[2]} == {chosen[2], chosen[4]})


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
