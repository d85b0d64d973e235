"""Which generator serves a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unstride.codegen.across import AcrossFamily
from unstride.codegen.direct import DirectFamily
from unstride.codegen.folded import FoldedFamily
from unstride.codegen.matrix import MatrixFamily
from unstride.codegen.rows import RowsFamily
from unstride.codegen.spread import SpreadFamily
from unstride.codegen.winograd import WinogradFamily
from unstride.codegen.winograd_whole import WholeFamily
from unstride.plan.across import AcrossPlan
from unstride.plan.choose import Plan
from unstride.plan.direct import DirectPlan
from unstride.plan.folded import FoldedPlan
from unstride.plan.matrix import MatrixPlan
from unstride.plan.rows import RowsPlan
from unstride.plan.spread import SpreadPlan
from unstride.plan.winograd import WinogradPlan
from unstride.plan.winograd_whole import WholePlan

__all__ = ["Family", "family_of"]

Family = DirectFamily | WinogradFamily | AcrossFamily | FoldedFamily | SpreadFamily | RowsFamily | MatrixFamily

_FAMILIES: dict[type, Callable[[Any, str], Family]] = {
    DirectPlan: DirectFamily.of,
    MatrixPlan: MatrixFamily.of,
    WinogradPlan: WinogradFamily.of,
    WholePlan: WholeFamily.of,
    AcrossPlan: AcrossFamily.of,
    FoldedPlan: FoldedFamily.of,
    SpreadPlan: SpreadFamily.of,
    RowsPlan: RowsFamily.of,
}


def family_of(plan: Plan, activation: str) -> Family:
    """What is compiled for a plan; equal families share their machine code."""
    return _FAMILIES[type(plan)](plan, activation)
