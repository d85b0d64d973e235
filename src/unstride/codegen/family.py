"""Which generator serves a plan."""

from __future__ import annotations

from unstride.codegen.across import AcrossFamily
from unstride.codegen.direct import DirectFamily
from unstride.codegen.folded import FoldedFamily
from unstride.codegen.rows import RowsFamily
from unstride.codegen.spread import SpreadFamily
from unstride.codegen.winograd import WinogradFamily
from unstride.plan.across import AcrossPlan
from unstride.plan.choose import Plan
from unstride.plan.folded import FoldedPlan
from unstride.plan.rows import RowsPlan
from unstride.plan.spread import SpreadPlan
from unstride.plan.winograd import WinogradPlan

__all__ = ["Family", "family_of"]

Family = DirectFamily | WinogradFamily | AcrossFamily | FoldedFamily | SpreadFamily | RowsFamily


def family_of(plan: Plan, activation: str) -> Family:
    """What is compiled for a plan; equal families share their machine code."""
    if isinstance(plan, WinogradPlan):
        return WinogradFamily.of(plan, activation)
    if isinstance(plan, FoldedPlan):
        return FoldedFamily.of(plan, activation)
    if isinstance(plan, RowsPlan):
        return RowsFamily.of(plan, activation)
    if isinstance(plan, SpreadPlan):
        return SpreadFamily.of(plan, activation)
    if isinstance(plan, AcrossPlan):
        return AcrossFamily.of(plan, activation)
    return DirectFamily.of(plan, activation)
