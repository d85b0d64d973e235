"""Writes and compares the golden files: `python -m tests.golden.golden` compares, `--write` accepts what is there now.

cases.txt          the cases, by hand
plans/NAME.txt     the plan and its launch, as `unstride.explain.plan.dump` prints them
ir/digests.txt     digest and size of the IR of each kernel family the cases need
ir/*.ll            the whole IR of two functions, to see what a change looks like
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from hashlib import blake2b
from pathlib import Path

from unstride.codegen import ir
from unstride.codegen.family import Family, family_of
from unstride.codegen.numbers import Numbers
from unstride.codegen.pack import emit_pack
from unstride.codegen.strips import emit_copy, emit_zero
from unstride.explain.plan import dump
from unstride.plan.choose import choose
from unstride.plan.machine import AVX2, ISAS, Machine
from unstride.problem import Problem

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Golden:
    name: str
    machine: Machine
    threads: int
    activation: str
    accuracy: str
    problem: Problem

    @classmethod
    def parse(cls, line: str) -> Golden:
        name, _, rest = line.partition(":")
        isa, threads, activation, accuracy, problem = rest.split(maxsplit=4)
        return cls(name, Machine(ISAS[isa], int(threads)), int(threads), activation, accuracy, Problem.parse(problem))

    def plan_text(self) -> str:
        return dump(*choose(self.problem, self.machine, self.threads, self.accuracy)) + "\n"

    def family(self) -> tuple[str, Family, Numbers]:
        plan, _ = choose(self.problem, self.machine, self.threads, self.accuracy)
        family = family_of(plan, self.activation)
        return f"{self.machine.isa.name} {family.key}", family, Numbers(self.problem.dtype, self.machine.isa)


def cases() -> list[Golden]:
    lines = (FOLDER / "cases.txt").read_text(encoding="utf-8").splitlines()
    return [Golden.parse(line) for line in lines if line and not line.startswith("#")]


def wanted() -> Iterator[tuple[str, str]]:
    """(path, text) of every golden file as the sources make it now."""
    families = {}
    for case in cases():
        yield f"plans/{case.name}.txt", case.plan_text()
        key, family, numbers = case.family()
        families[key] = (family, numbers)
    yield "ir/digests.txt", "".join(f"{_digest(f.build(n))} {key}\n" for key, (f, n) in sorted(families.items()))
    for name, emit in (
        ("pack_f16_avx2", emit_pack),
        ("strips_f32_avx2", lambda m, n: (emit_zero(m, n), emit_copy(m, n))),
    ):
        module = ir.Module(name=name)
        emit(module, Numbers("f16" if "f16" in name else "f32", AVX2))
        yield f"ir/{name}.ll", str(module)


def _digest(text: str) -> str:
    return f"{blake2b(text.encode(), digest_size=16).hexdigest()} {len(text):7}"


def differences() -> dict[str, str]:
    """What differs from the golden files: path -> unified diff."""
    found, made = {}, dict(wanted())
    for path, text in made.items():
        file = FOLDER / path
        old = file.read_text(encoding="utf-8") if file.exists() else ""
        if old != text:
            lines = unified_diff(old.splitlines(), text.splitlines(), f"golden/{path}", "now", lineterm="", n=1)
            found[path] = "\n".join(lines)
    for file in sorted((*FOLDER.glob("plans/*.txt"), *FOLDER.glob("ir/*"))):
        path = file.relative_to(FOLDER).as_posix()
        if path not in made:
            found[path] = "no case makes this file any more"
    return found


def write() -> None:
    made = dict(wanted())
    for path in differences():
        file = FOLDER / path
        if path in made:
            file.parent.mkdir(exist_ok=True)
            file.write_text(made[path], encoding="utf-8")
        else:
            file.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="accept the present state")
    if parser.parse_args().write:
        write()
    found = differences()
    for path, text in found.items():
        print(f"{path}\n{text}\n")
    print(f"{len(dict(wanted()))} golden files, {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
