"""Single faults in LLVM IR text: loop bounds, masks, offsets and strides, one line changed at a time.

Changes that cannot matter, whatever the code is for, are not planted:

* code that cannot be reached, since it lies behind a comparison of two constants;
* at a tie, both operands of a minimum or maximum are the same;
* whether a loop is entered at all, or whether there is anything to do (`> 0`, `a > b` where `a - b` is counted, two of
  these at once), is turned around, not relaxed: relaxing it changes only what has no turns;
* so is whether a row of a tile of sums (`sum_*`) counts: most rows of a tile are never the last;
* a loop's step only grows: a smaller one repeats what is done, which copying and filling forgive; and not where the
  loop has one turn at most, since it takes what is left of pairs (`n - n % 2` or `n & -2` up to `n`);
* the number of rows of a tile of sums that is never called with fewer than it has, as the next lower one exists;
* a prefetch may fetch anything, also one whose address is handed on (NEXT); the lanes of a sum over lanes may come in
  any order;
* the choice among ways that give the same numbers (`tile_*`: are all columns stored? `transpose_*`: which block fits?
  `line_*`: which width holds what is left? `weave`: whole blocks, or by element? `rows_*`: is a row short enough for
  one turn of so many periods? does a turn end where something may be stored, so that it needs no mask?), and the last
  block of a transposition, which may be done twice;
* `zero`, `padded`, `weave` and `sum` may run over, by contract; a turn of `rows_*` beyond the row stores nothing;
* the pitch of lines in scratch, rounded up to vectors, and the slack added to it: any that all sides share, and that is
  long enough, is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from unstride.codegen.across import LineArgs
from unstride.codegen.tile import TileArgs
from unstride.plan.winograd import even_heights

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

    def body(self, text: str) -> str:
        """The function it changes, as it was."""
        lines = text.split("\n")
        start = max(i for i in range(self.line + 1) if lines[i].startswith("define "))
        return "\n".join(lines[start : lines.index("}", self.line)])

    def applied(self, text: str) -> str:
        lines = text.split("\n")
        assert lines[self.line] == self.old
        lines[self.line] = self.new
        return "\n".join(lines)


_DEFINE = re.compile(r'^define .*@"?([\w.]+)"?\(')
_NAME = re.compile(r"^ *(%\S+) = ")
_TILE = re.compile(r"tile_(\d+)x(\d+)$")
_COMPARE = re.compile(r"= icmp (\w+) i64 (\S+), (\S+)$")
_RELAXED = {"slt": "sle", "sle": "slt", "sgt": "sge", "sge": "sgt", "eq": "ne", "ne": "eq"}
_TURNED = {"slt": "sge", "sle": "sgt", "sgt": "sle", "sge": "slt", "eq": "ne", "ne": "eq"}
_SELECT = re.compile(r"(select +i1 \S+, i64 )(\S+)(, i64 )(\S+)")
_ENTERS = re.compile(r"^ *br i1 (%\S+), label %(?:loop|fold)(?:\.\d+)?,")
_GEP = re.compile(r"(getelementptr (?:inbounds )?[\w<> ]+, ptr \S+, i64 )(-?\d+)$")
_GEP_VARIABLE = re.compile(r"(getelementptr (?:inbounds )?)(\w+)(, ptr \S+, i64 %\S+)$")
_CONSTANT = re.compile(r"(= (?:add|sub|mul)(?: nsw)? i64 \S+, )(-?\d+)$")
_SUM = re.compile(r"= (add|sub)( nsw)? i64 (\S+), (%\S+)$")
_PRODUCT = re.compile(r"= mul( nsw)? i64 (\S+), (%\S+)$")
_MASK = re.compile(r"(= and i64 \S+, )(-2)$")
_LOGIC = re.compile(r"= (and|or) i1 (\S+), (\S+)$")
_SHUFFLE = re.compile(r"shufflevector <[^>]+> (\S+), <[^>]+> (\S+), <[^>]+> <(i32 \d+(?:, i32 \d+)+)>$")
_WIDER = {"float": "i64", "i64": "i128", "half": "i32", "i16": "i32", "double": "i32"}


class _Scope:
    """One function of a module: its lines, and which line makes which value."""

    def __init__(self, name: str, lines: list[str], functions: frozenset[str]) -> None:
        self.name, self.lines, self.functions = name, lines, functions
        self.made = {match[1]: line for line in lines if (match := _NAME.match(line))}

    def uses(self, value: str) -> list[str]:
        """The lines that read a value."""
        word = re.compile(re.escape(value) + r"(?![\w.])")
        return [line for line in self.lines if word.search(line.partition(" = ")[2] or line)]

    def prefetched(self) -> set[str]:
        """The values that nothing but a prefetch depends on: of all values, what is left when those are taken away of
        which something else is made, or which do something else, until nothing more is."""
        uses = {name: [use for use in self.uses(name) if not self._fetches(use)] for name in self.made}
        made = {name: [match[1] if (match := _NAME.match(use)) else "" for use in uses[name]] for name in uses}
        found = set(uses)
        while gone := {name for name in found if any(user not in found for user in made[name])}:
            found -= gone
        ends = {name for name in found if any(self._fetches(use) for use in self.uses(name))}
        while more := {name for name in found - ends if any(user in ends for user in made[name])}:
            ends |= more
        return ends

    def _fetches(self, line: str) -> bool:
        return "@llvm.prefetch" in line.replace('"', "") or self._hands_on(line)

    def _hands_on(self, line: str) -> bool:
        """Whether a line tells a line function, or a tile of Winograd's, what it shall prefetch."""
        stored = re.match(r" *store i64 \S+, ptr (%\S+),", line)
        place = _GEP.search(self.made.get(stored[1], "")) if stored else None
        if place is None:
            return False
        lines = any(function.startswith("line_") for function in self.functions)
        if lines:
            return int(place[2]) in (LineArgs.NEXT, LineArgs.NEXT_PITCH)
        tiles = [tuple(map(int, tile.groups())) for name in self.functions if (tile := _TILE.match(name))]
        heights = [height for height, width in tiles if width == max(width for _, width in tiles)]
        winograd = bool(heights) and tuple(sorted(heights)) == even_heights(max(heights))
        return winograd and int(place[2]) in (TileArgs.SOURCES + 2, TileArgs.SOURCES + 3)

    def reached(self) -> set[int]:
        """The numbers of the lines that some path from the entry leads to."""
        labels = {match[1]: number for number, line in enumerate(self.lines) if (match := re.match(r"(\S+):$", line))}
        seen, found, open_labels = set(), set(), list(labels)[:1]
        while open_labels:
            label = open_labels.pop()
            if label in seen or label not in labels:
                continue
            seen.add(label)
            for number in range(labels[label] + 1, len(self.lines)):
                found.add(number)
                if re.match(r" *(?:br|ret) ", self.lines[number]):
                    open_labels += self._targets(self.lines[number])
                    break
        return found

    def _targets(self, branch: str) -> list[str]:
        names = re.findall(r"label %([^\s,]+)", branch)
        if len(names) == 2 and (condition := re.search(r"br i1 (%\S+),", branch)):
            known = self._known(condition[1])
            return names if known is None else names[:1] if known else names[1:]
        return names

    def _known(self, condition: str) -> bool | None:
        """What a condition is, if it is the same whenever it is asked."""
        made = self.made.get(condition, "")
        if (match := re.search(r"= icmp (eq|ne) i64 (-?\d+), (-?\d+)$", made)) is not None:
            return (match[2] == match[3]) == (match[1] == "eq")
        if (match := re.search(r"= xor i1 (%\S+), -1$", made)) is not None:
            known = self._known(match[1])
            return None if known is None else not known
        return None

    def starts_with(self, *prefixes: str) -> bool:
        return self.name.startswith(prefixes)


def mutants(text: str) -> list[Mutant]:
    """Every single fault that these rules can plant."""
    lines = text.split("\n")
    starts = [(number, match[1]) for number, line in enumerate(lines) if (match := _DEFINE.match(line))]
    functions = frozenset(name for _, name in starts)
    found = []
    for (start, function), (end, _) in zip(starts, [*starts[1:], (len(lines), "")], strict=True):
        if function == "zero":
            continue
        scope = _Scope(function, lines[start:end], functions)
        prefetched = scope.prefetched()
        for number in sorted(start + line for line in scope.reached()):
            line, name = lines[number], _NAME.match(lines[number])
            if name and name[1] in prefetched:
                continue
            changed = _changed(scope, line, lines[number - 1], _next(lines, number))
            found += [Mutant(kind, function, number, line, new) for kind, new in changed if new != line]
    return found


def _next(lines: list[str], number: int) -> str:
    """The next line. Empty assembler text that hides a value from LLVM is looked through."""
    after, name = lines[number + 1], _NAME.match(lines[number])
    hidden = re.match(r' *(%\S+) = call i64 asm "", "[^"]*"\(i64 (%\S+)\)$', after)
    if hidden and name and hidden[2] == name[1]:
        return re.sub(re.escape(hidden[1]) + r"(?![\w.])", name[1], lines[number + 2])
    return after


def _changed(scope: _Scope, line: str, before: str, after: str) -> Iterator[tuple[str, str]]:
    chooses = scope.starts_with("tile_", "transpose_", "line_", "weave")  # between ways that give the same numbers
    if (match := _COMPARE.search(line)) and match[1] in _RELAXED:
        yield from _bounds(scope, line, match, before, after)
    if (match := _SELECT.search(line)) and not _only_asked_inside(scope, line):
        yield "bound", line.replace(match[0], match[1] + match[4] + match[3] + match[2], 1)
    if (match := _GEP.search(line)) and not _says_height(scope, line):
        yield "offset", line.replace(match[0], f"{match[1]}{int(match[2]) + 1}", 1)
    if (match := _CONSTANT.search(line)) and not (_turns_once(scope, line, after) or _is_slack(scope, match)):
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
    if (match := _LOGIC.search(line)) and not (chooses or all(map(partial(_asks_inside, scope), match.groups()[1:]))):
        other = "xor" if _both_alive(scope, match) else "or" if match[1] == "and" else "and"
        yield "mask", line.replace(f"= {match[1]} i1", f"= {other} i1", 1)
    if (match := _SHUFFLE.search(line)) and match[1] != match[2]:
        lanes = match[3].split(", ")
        yield "mask", line.replace(match[3], ", ".join([*lanes[1:], lanes[0]]), 1)


def _bounds(scope: _Scope, line: str, match: re.Match[str], before: str, after: str) -> Iterator[tuple[str, str]]:
    operator, left, right = match.groups()
    chosen = _SELECT.search(after)
    if chosen and {left, right} == {chosen[2], chosen[4]}:
        return  # a minimum or a maximum
    name, entered, again = _NAME.match(line), _ENTERS.match(after), False
    if entered and name and entered[1] == name[1]:
        again = (made := _NAME.match(before)) is not None and made[1] == left  # the step was taken just before
        if not again:
            yield "bound", line.replace(f"icmp {operator} ", f"icmp {_TURNED[operator]} ", 1)
            return
        if scope.starts_with("transpose_", "weave", "padded") or scope.name == "sum":
            return
        if scope.starts_with("rows_") and not re.search(r"= add(?: nsw)? i64 \S+, 1$", before):
            return
    elif scope.starts_with("tile_", "transpose_", "line_", "weave") or (name and _asks_inside(scope, name[1])):
        return
    counts = scope.starts_with("sum_") and right.isdigit()
    more, less = (left, right) if operator == "sgt" else (right, left)
    alive = operator == "sgt" and (counts or right == "0")
    alive = alive or (operator in ("sgt", "slt") and _counted(scope, more, less))
    changed = _TURNED if alive and not again else _RELAXED
    yield "bound", line.replace(f"icmp {operator} ", f"icmp {changed[operator]} ", 1)


def _asks_inside(scope: _Scope, name: str) -> bool:
    """Whether a value compares a turn of a row with where the row ends or may be stored to (arguments 9 and 10 of
    `rows_*`, or the larger of 10 and another), or the length of the row with that of a turn, which is constant."""
    compared = _COMPARE.search(scope.made.get(name, ""))
    if not (compared and scope.starts_with("rows_")):
        return False
    ends = {compared[2], compared[3]}
    larger = (_SELECT.search(scope.made.get(end, "")) for end in ends)
    whole_row = compared[1] == "sle" and re.fullmatch(r"[1-9]\d*", compared[3])
    return bool({"%a9", "%a10"} & ends or any(m and "%a10" in (m[2], m[4]) for m in larger) or whole_row)


def _only_asked_inside(scope: _Scope, line: str) -> bool:
    """Whether a value only serves such comparisons."""
    name = _NAME.match(line)
    users = [_NAME.match(use) for use in scope.uses(name[1])] if name else []
    return bool(users) and all(user and _asks_inside(scope, user[1]) for user in users)


def _counted(scope: _Scope, more: str, less: str) -> bool:
    """Whether the function also computes `more - less`: then `more > less` asks if there is anything to do."""
    return any(re.search(rf"= sub(?: nsw)? i64 {re.escape(more)}, {re.escape(less)}$", line) for line in scope.lines)


def _both_alive(scope: _Scope, match: re.Match[str]) -> bool:
    """Whether `a and b` joins two questions of the kind `> 0`."""
    tests = (scope.made.get(name, "") for name in match.groups()[1:])
    return match[1] == "and" and all(re.search(r"= icmp sgt i64 \S+, 0$", test) for test in tests)


def _turns_once(scope: _Scope, line: str, after: str) -> bool:
    """Whether the sum is the step of a loop from `n - n % 2` to n."""
    compared, added = _COMPARE.search(after), re.search(r"= add(?: nsw)? i64 (\S+), 1$", line)
    if not (added and compared and _is_step(line, after)):
        return False
    first = re.search(r"= phi +i64 \[(%[^,]+),", scope.made.get(added[1], ""))
    made, number = scope.made.get(first[1], "") if first else "", re.escape(compared[3])
    if re.search(rf"= and i64 {number}, -2$", made):
        return True
    whole = re.search(rf"= sub(?: nsw)? i64 {number}, (\S+)$", made)
    rest = scope.made.get(whole[1], "") if whole else ""
    return bool(re.search(rf"= (?:srem i64 {number}, 2|and i64 {number}, 1)$", rest))


def _is_slack(scope: _Scope, match: re.Match[str]) -> bool:
    """Whether a constant is added to what was rounded up to whole vectors."""
    added = re.match(r"= add(?: nsw)? i64 (\S+), ", match[1])
    return bool(added and re.search(r"= and i64 \S+, -\d\d?$", scope.made.get(added[1], "")))


def _says_height(scope: _Scope, line: str) -> bool:
    """Whether a field is read only to be compared with row numbers, in a tile of sums that always has all its rows."""
    name, tile = _NAME.match(line), re.match(r"sum_(\d+)x(\d+)$", scope.name)
    if not (name and tile):
        return False
    height, width = int(tile[1]), int(tile[2])
    if height > 1 and f"sum_{height - 1}x{width}" not in scope.functions:
        return False
    loads = [made[1] for use in scope.uses(name[1]) if " = load i64" in use and (made := _NAME.match(use))]
    reads = [use for load in loads for use in scope.uses(load)]
    return bool(reads) and all(re.search(r"= icmp sgt i64 %\S+, \d+$", use) for use in reads)


def _is_step(line: str, after: str) -> bool:
    """Whether the sum is compared at once, to see if the loop goes on."""
    name, compared = _NAME.match(line), _COMPARE.search(after)
    return bool(name and compared and compared[2] == name[1])


def sample(text: str, seed: int) -> list[Mutant]:
    """The mutants of a module in an order that takes each kind and each function in turn, as far as they go."""
    rng = Random(seed)
    groups: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in mutants(text):
        groups.setdefault((mutant.kind, mutant.function), []).append(mutant)
    for group in groups.values():
        rng.shuffle(group)
    rounds = max(map(len, groups.values()), default=0)
    return [group[turn] for turn in range(rounds) for group in groups.values() if turn < len(group)]
