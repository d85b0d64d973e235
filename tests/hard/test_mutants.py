"""What is planted, and what would notice it."""

from __future__ import annotations

import re
import resource
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.compiler.cases import Case
from tests.hard import apart, checks, forks, mutants, mutations
from tests.hard.origins import Origins
from unstride.codegen import winograd
from unstride.codegen.gradient_bias import bias_ir
from unstride.codegen.numbers import Numbers
from unstride.problem import Problem
from unstride.runtime import cache as store
from unstride.runtime import elf, engine
from unstride.runtime.machine import host

_IR = """
define void @run(ptr %v1, i64 %v2) {
entry:
  %v3 = icmp slt i64 0, %v2
  br i1 %v3, label %loop, label %done
loop:
  %v4 = phi i64 [0, %entry], [%v9, %loop]
  %v5 = icmp slt i64 %v4, %v2
  %v6 = select i1 %v5, i64 %v4, i64 %v2
  %v7 = mul nsw i64 %v6, %v2
  %v8 = getelementptr i64, ptr %v1, i64 %v7
  store i64 %v7, ptr %v8
  %v9 = add nsw i64 %v4, 1
  %v10 = icmp slt i64 %v9, %v2
  br i1 %v10, label %loop, label %done
done:
  ret void
}
"""


def planted(text: str) -> list[str]:
    return [str(mutant).split(": ", 1)[1] for mutant in mutations.mutants(text)]


def body(*lines: str, name: str = "run") -> str:
    text = "\n".join(f"  {line}" for line in lines)
    return f"define void @{name}(ptr %v1, i64 %v2, i64 %v3) {{\nentry:\n{text}\n  ret void\n}}\n"


def test_mutants_are_faults_that_matter() -> None:
    found = planted(_IR)
    assert "%v3 = icmp slt i64 0, %v2  ->  %v3 = icmp sge i64 0, %v2" in found  # entered: turned around
    assert "%v10 = icmp slt i64 %v9, %v2  ->  %v10 = icmp sle i64 %v9, %v2" in found  # goes on: relaxed
    assert "%v9 = add nsw i64 %v4, 1  ->  %v9 = add nsw i64 %v4, 2" in found
    assert not any(text.startswith("%v5") for text in found)  # a minimum has no wrong tie
    assert {mutant.kind for mutant in mutations.mutants(_IR)} == {"bound", "offset", "stride"}
    original = engine.compile_object(_IR, host().isa)
    objects = {engine.compile_object(mutant.applied(_IR), host().isa) for mutant in mutations.sample(_IR, 0)}
    assert original not in objects
    assert len(objects) == len(found) == 7


def test_the_order_of_mutants_depends_on_the_seed_alone() -> None:
    orders = [[str(mutant) for mutant in mutations.sample(_IR, seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
    assert [order[0].split()[0] for order in orders] == ["bound"] * 3  # each kind in turn


def test_questions_whether_there_is_anything_to_do_are_turned_around() -> None:
    text = body("%v4 = icmp sgt i64 %v2, 0", "%v5 = icmp sgt i64 %v3, 0", "%v6 = and i1 %v4, %v5")
    assert "%v4 = icmp sgt i64 %v2, 0  ->  %v4 = icmp sle i64 %v2, 0" in planted(text)
    assert "%v6 = and i1 %v4, %v5  ->  %v6 = xor i1 %v4, %v5" in planted(text)
    counted = body("%v4 = icmp sgt i64 %v2, %v3", "%v5 = sub nsw i64 %v2, %v3")
    assert "%v4 = icmp sgt i64 %v2, %v3  ->  %v4 = icmp sle i64 %v2, %v3" in planted(counted)
    other = body("%v4 = icmp sgt i64 %v2, %v3", "%v5 = sub nsw i64 %v3, %v2")
    assert "%v4 = icmp sgt i64 %v2, %v3  ->  %v4 = icmp sge i64 %v2, %v3" in planted(other)


@pytest.mark.parametrize(("rest", "steps"), [("srem i64 %v2, 2", 0), ("srem i64 %v2, 3", 1)])
def test_the_step_of_a_loop_that_turns_once_is_left_alone(rest: str, steps: int) -> None:
    text = body(
        f"%v4 = {rest}",
        "%v5 = sub nsw i64 %v2, %v4",
        "%v6 = phi i64 [%v5, %entry], [%v7, %loop]",
        "%v7 = add nsw i64 %v6, 1",
        "%v8 = icmp slt i64 %v7, %v2",
    )
    assert sum(line.startswith("%v7") for line in planted(text)) == steps


def test_code_that_is_never_reached_is_left_alone() -> None:
    lines = (
        "%v4 = icmp ne i64 0, 0",
        "br i1 %v4, label %then, label %after",
        "then:",
        "%v5 = add nsw i64 %v2, 7",
        "br label %after",
        "after:",
        "%v6 = add nsw i64 %v2, 9",
    )
    text = body(*lines).replace("  then:", "then:").replace("  after:", "after:")
    assert {line.split()[0] for line in planted(text)} == {"%v4", "%v6"}
    assert any(line.startswith("%v5") for line in planted(text.replace("ne i64 0, 0", "ne i64 0, 1")))


def test_steps_are_seen_through_what_hides_them() -> None:
    text = body("%v4 = add nsw i64 %v2, 16", '%v5 = call i64 asm "", "=r,0"(i64 %v4)', "%v6 = icmp slt i64 %v5, %v3")
    assert [line for line in planted(text) if line.startswith("%v4")] == [
        "%v4 = add nsw i64 %v2, 16  ->  %v4 = add nsw i64 %v2, 17"
    ]


def test_the_height_of_a_tile_of_sums_is_left_alone_where_it_cannot_vary() -> None:
    lines = (
        "%v4 = getelementptr i64, ptr %v1, i64 10",
        "%v5 = load i64, ptr %v4",
        "%v6 = icmp sgt i64 %v5, 1",
    )
    low, high = body(*lines, name="sum_2x1"), body(*lines, name="sum_4x1")
    one = body(name="sum_1x1")
    assert not any(line.startswith("%v4") for line in planted(one + low))
    assert any(line.startswith("%v4") for line in planted(one + high))


# --- one task at a time ----------------------------------------------------------------------------------------------

_TASK = """
define void @task(ptr %memory, i64 %index, i64 %slot) {{
  %at = add i64 %index, {shift}
  %p = getelementptr i32, ptr %memory, i64 %at
  store i32 7, ptr %p
  %s = add i64 %slot, {slot}
  %bytes = mul i64 %s, 16
  %first = add i64 %bytes, 1024
  %q = getelementptr i8, ptr %memory, i64 %first
  store i64 1, ptr %q
  ret void
}}
"""


def run_tasks(tasks: int, **changes: int) -> Any:
    text = _TASK.format(**{"shift": 0, "slot": 0} | changes)
    address = elf.place(engine.compile_object(text, host().isa), ("task",))["task"]
    memory = np.zeros(2048, np.uint8)
    span = apart.Stored(memory.ctypes.data, 8, 4)
    slots = memory[1024 : 1024 + 48].reshape(3, 16)
    apart._one_by_one(address, memory.ctypes.data, tasks, 3, Random(0), slots, [span])
    span.finish("eight words", 1)
    return memory[:32].view(np.uint32)


def test_tasks_that_keep_to_their_place_pass() -> None:
    assert run_tasks(8).tolist() == [7] * 8


@pytest.mark.parametrize(("tasks", "changes"), [(7, {}), (8, {"shift": 1}), (8, {"slot": 3}), (8, {"slot": -1})])
def test_tasks_that_leave_their_place_are_noticed(tasks: int, changes: dict[str, int]) -> None:
    if changes.get("slot") == 3:
        assert run_tasks(tasks, **changes).tolist() == [7] * 8  # beyond all slots: that is what walls are for
        return
    with pytest.raises(AssertionError):
        run_tasks(tasks, **changes)


def test_a_task_that_does_its_neighbours_work_is_noticed() -> None:
    """The right sums, twice: no result shows it."""
    text = bias_ir(Numbers("f32", host().isa))
    wrong = next(m for m in mutations.mutants(text) if m.function == "reduce" and re.search(r"add nsw .* 1$", m.old))
    problem = Problem.parse("scatter f32 NCX GIOX n2 g1 i1 o3 x40000 k1 s1 d1 b0 y40000")
    key, names = f"{host().isa.name} bias f32", ("fold", "reduce")
    assert checks.bias_gradient(problem, 0, True, True) == ""
    right = store.memory[key]
    try:
        for module, alone, fault in (
            (text, True, ""),
            (wrong.applied(text), False, ""),
            (wrong.applied(text), True, "2"),
        ):
            addresses = elf.place(engine.compile_object(module, host().isa), names)
            store.memory[key] = engine.Loaded(addresses, "cold", 0.0)
            if fault:
                with pytest.raises(AssertionError, match="stored 1 to 2 times"):
                    checks.bias_gradient(problem, 0, True, alone)
            else:
                assert checks.bias_gradient(problem, 0, True, alone) == ""
    finally:
        store.memory[key] = right


def test_a_box_that_is_copied_without_need_is_noticed() -> None:
    padded = Case(Problem.parse("gather f32 NXC GIOX n1 g1 i3 o5 x4x4 k3x3 s1x1 d1x1 b1x1 y4x4"), accuracy="strict")
    free = Case(Problem.parse("gather f32 NXC GIOX n1 g1 i3 o5 x4x4 k3x3 s1x1 d1x1 b0x0 y6x6"), accuracy="strict")
    assert checks.in_place(free, "source", True) == ""
    with pytest.raises(AssertionError, match="source that could be used in place was copied"):
        checks.in_place(padded, "source", True)


def test_weights_that_vanish_are_not_multiplied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are zero, so results do not show it, only the time they take."""
    case = Case(Problem.parse("scatter f32 NXC GIOX n1 g1 i16 o64 x9x9 k3x3 s2x2 d1x1 b0x0 y19x19"), seed=1)
    check = partial(checks.by_kind, "winograd", partial(checks.apart, case, True))
    assert check() == ""
    monkeypatch.setenv("UNSTRIDE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "memory", {})
    monkeypatch.setattr(winograd.WinogradDriver, "_vanishes", lambda self, panel, point: self.e.int(0).differs(0))
    assert "nan" in check()


# --- the program -----------------------------------------------------------------------------------------------------


def test_every_kind_of_check_passes_on_the_right_code() -> None:
    for check in checks.checks(4):
        assert check() == "", check


def test_lines_know_who_wrote_them() -> None:
    with Origins().noted() as origins:
        text = bias_ir(Numbers("f32", host().isa))
    mutant = next(m for m in mutations.mutants(text) if m.function == "reduce")
    place = origins.of(mutant.function, mutant.old)
    assert str(place) == "gradient_bias.py _emit_reduce"
    assert place.text.startswith("line, lines, segments = ")
    assert origins.of("nothing", mutant.old).file == "?"


@pytest.mark.parametrize("answer", ["caught: a wrong result", "died of SIGSEGV", "died of SIGABRT", "died of SIGXCPU"])
def test_a_fault_is_caught(answer: str) -> None:
    assert mutants.verdict(answer) == answer


@pytest.mark.parametrize("answer", ["hung", "died of SIGKILL", "died of SIGTERM", "met OSError: no thread"])
def test_a_process_that_ends_for_other_reasons_tells_nothing(answer: str) -> None:
    """It may have been stopped, or starved: the mutant counts as a survivor."""
    assert mutants.verdict(answer) == f"survived, for its process {answer}"


def test_code_that_computes_without_end_is_caught() -> None:
    def endless() -> str:
        resource.setrlimit(resource.RLIMIT_CPU, (1, 60))
        while True:
            pass

    text = bias_ir(Numbers("f32", host().isa))
    subject = mutants.Subject("bias f32", text, host().isa, ("fold", "reduce"), Origins(), [endless])
    assert forks.alone(partial(mutants.tried, subject, text, b""), seconds=60) == "died of SIGXCPU"


def test_the_right_code_and_the_same_code_are_told_apart_from_mutants(monkeypatch: pytest.MonkeyPatch) -> None:
    text = bias_ir(Numbers("f32", host().isa))
    problem = Problem.parse("scatter f32 NCX GIOX n1 g1 i1 o3 x70 k1 s1 d1 b0 y70")
    check = lambda: checks.bias_gradient(problem, 0, True, True)  # noqa: E731
    subject = mutants.Subject("bias f32", text, host().isa, ("fold", "reduce"), Origins(), [check])
    monkeypatch.setenv("UNSTRIDE_NUM_THREADS", "2")
    answers = dict(mutants.judged(subject, 6, 0, set()))
    assert len(answers) == 6
    assert mutants.SAME not in answers.values()
    assert any(answer != mutants.SURVIVED for answer in answers.values())
    wrong = mutants.Subject("bias f32", text, host().isa, ("fold", "reduce"), Origins(), [lambda: "always wrong"])
    with pytest.raises(AssertionError, match="the right code is caught"):
        list(mutants.judged(wrong, 1, 0, set()))


def test_reasons_speak_of_lines_that_exist() -> None:
    """A line that is written anew needs a reason of its own, or none."""
    sources = [path.read_text(encoding="utf-8") for path in Path(winograd.__file__).parent.glob("*.py")]
    assert [line for _, line, _ in mutants.REASONS if not any(line in text for text in sources)] == []
