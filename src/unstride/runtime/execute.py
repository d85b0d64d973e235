"""Running a Problem on arrays, and layers with their weights packed once.

This version runs every case on the reference.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from unstride.errors import DTypeError, RuleWarning
from unstride.problem import Problem, Structure
from unstride.reference import reference, rounded
from unstride.runtime import buffers

__all__ = ["Layer", "LayerInfo", "run"]

Resolve = Callable[[tuple[int, ...], Any], tuple[Problem, str | None]]


def run(
    problem: Problem,
    data: Any,
    filter: Any,
    bias: Any = None,
    *,
    activation: str | tuple[str, float] | None = None,
    threads: int | None = None,
    accuracy: str = "standard",
    out: Any = None,
) -> Any:
    """The result of one case; every operand is a NumPy array that fits the problem."""
    inputs = [array for array in (data, filter, bias) if array is not None]
    result = buffers.result_buffer(problem.result_shape, problem.dtype, out, inputs)
    values = _activated(reference(problem, data, filter, bias), activation)
    result[...] = rounded(values, problem.dtype)
    return result


@dataclass(frozen=True)
class LayerInfo:
    """How a layer runs."""

    algorithm: str
    compiled: str
    compile_ms: float
    threads: int | None
    accuracy: str


class Layer:
    """An operator with its weights: `layer(x)` takes any batch and any spatial size."""

    def __init__(
        self,
        structure: Structure,
        resolve: Resolve,
        filter: Any,
        bias: Any = None,
        *,
        activation: str | tuple[str, float] | None = None,
        threads: int | None = None,
        accuracy: str = "standard",
    ) -> None:
        self._structure = structure
        self._resolve = resolve
        self._operands = (np.array(filter), None if bias is None else np.array(bias))
        self._options: dict[str, Any] = {"activation": activation, "threads": threads, "accuracy": accuracy}
        self.info = LayerInfo("reference", "memory", 0.0, threads, accuracy)

    def __call__(self, data: Any, output_shape: Any = None, out: Any = None) -> Any:
        """Run on one array; a RuleWarning is issued where the rule sets disagree for this call."""
        values = buffers.as_input(data, "data")
        if buffers.dtype_name(values) != self._structure.dtype:
            rule = f"the layer was compiled for {self._structure.dtype}"
            raise DTypeError("data", buffers.dtype_name(values), rule, "convert the data or compile again")
        problem, warning = self._resolve(values.shape, output_shape)
        if warning:
            warnings.warn(warning, RuleWarning, stacklevel=2)
        return run(problem, values, *self._operands, out=out, **self._options)


def _activated(values: Any, activation: str | tuple[str, float] | None) -> Any:
    if activation is None:
        return values
    if activation == "relu":
        return np.maximum(values, 0)
    if activation == "tanh":
        return np.tanh(values)
    if activation == "sigmoid":
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-values))
    return np.where(values > 0, values, float(activation[1]) * values)
