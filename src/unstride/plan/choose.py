"""Which algorithm computes a problem: special plans first, the direct plan for everything else."""

from __future__ import annotations

from unstride.plan.across import AcrossPlan, plan_across
from unstride.plan.across_launch import plan_across_launch
from unstride.plan.direct import DirectPlan, plan_direct
from unstride.plan.launch import Launch, clipping_pays, plan_launch
from unstride.plan.machine import ISA, Machine
from unstride.plan.winograd import WinogradPlan, plan_winograd
from unstride.plan.winograd_launch import plan_winograd_launch
from unstride.problem import Problem, Structure

__all__ = ["Plan", "choose", "launches_of", "special_plan"]

Plan = DirectPlan | WinogradPlan | AcrossPlan


def special_plan(structure: Structure, isa: ISA, accuracy: str) -> WinogradPlan | AcrossPlan | None:
    """A plan that beats the direct one on maps that are large enough, if there is one."""
    across = plan_across(structure, isa)
    if across is not None or accuracy == "strict" or structure.dtype == "f64":
        return across
    return plan_winograd(structure, isa, fast=accuracy == "fast")


def launches_of(plan: Plan, problem: Problem, machine: Machine, threads: int) -> tuple[Launch, ...]:
    """The launches of one size: the plan's own, and the direct one it may leave units to; empty if it declines."""
    if isinstance(plan, WinogradPlan):
        return plan_winograd_launch(plan, problem, machine, threads) or ()
    if isinstance(plan, AcrossPlan):
        across = plan_across_launch(plan, problem, machine, threads)
        return () if across is None else (across,)
    return (plan_launch(plan, problem, machine, threads),)


def choose(
    problem: Problem, machine: Machine, threads: int, accuracy: str = "standard"
) -> tuple[Plan, tuple[Launch, ...]]:
    """The plan that a problem with finite weights will run by, and its launches.

    >>> from unstride.plan.machine import AVX2
    >>> p = Problem.parse("scatter f32 NXC GIOX n1 g1 i64 o64 x28x28 k4x4 s2x2 d1x1 b1x1 y56x56")
    >>> choose(p, Machine(AVX2, 2), 2)[0].algorithm, choose(p, Machine(AVX2, 2), 2, "strict")[0].algorithm
    ('winograd F(3,2)xF(3,2)', 'direct')
    """
    special = special_plan(problem.structure, machine.isa, accuracy)
    if special is not None:
        launches = launches_of(special, problem, machine, threads)
        if launches:
            return special, launches
    direct = special.direct if special else plan_direct(problem.structure, machine.isa)
    if clipping_pays(direct, problem, machine):
        direct = plan_direct(problem.structure, machine.isa, clipped=True)
    return direct, launches_of(direct, problem, machine, threads)
