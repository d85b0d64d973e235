"""What each operator document says: attributes, checks and rules that turn a call into a Problem."""

from __future__ import annotations

from unstride.dialects import functional, onednn, onnx, openvino
from unstride.dialects._operator import Operator, Resolution
from unstride.dialects._rules import Rule, Window

__all__ = ["Operator", "Resolution", "Rule", "Window", "all_rules", "functional", "onednn", "onnx", "openvino"]


def all_rules() -> tuple[Rule, ...]:
    """Every rule of every dialect, in the order in which a reader wants them: the source of the rules page."""
    return (*openvino.RULES, *onednn.RULES, *onnx.RULES, *functional.RULES)
