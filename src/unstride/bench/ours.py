"""This package as a contender, through the operators users call: weights packed once, the result's buffer reused."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride import onednn, openvino
from unstride.bench.case import Case
from unstride.bench.contender import Prepared, gather_pads, split_crops
from unstride.problem import Problem

__all__ = ["OURS", "Unstride"]

OURS = "unstride"


class Unstride:
    """OpenVINO's operators for NCX data, oneDNN's for NXC data and for the gather direction."""

    name = OURS
    layouts = ("NCX", "NXC")

    def __init__(self, accuracy: str = "standard") -> None:
        self.accuracy = accuracy

    def prepare(self, case: Case) -> Prepared:
        operator, weights = self._operator(case)
        layer = operator.compile(weights, threads=case.threads, accuracy=self.accuracy)
        x = case.data
        y: NDArray[Any] = layer(x)

        def result() -> NDArray[Any]:
            y.view(np.uint8).fill(0xFF)  # NaN in every type: an element that is not written shows
            layer(x, out=y)
            return y.copy()

        return Prepared(lambda: layer(x, out=y), result, lambda: _note(layer, x))

    def _operator(self, case: Case) -> tuple[Any, NDArray[Any]]:
        p = case.problem
        strides = list(p.stride)
        if p.direction == "gather":
            begin, end = gather_pads(p)
            arguments: dict[str, Any] = {
                "groups": p.groups,
                "data_format": p.data_layout,
                "filter_format": _filter_format(p),
            }
            return onednn.ConvTransposeBackpropData(strides, begin, end, list(p.dilation), **arguments), _filter(case)
        begin, end, extra = split_crops(p)
        if p.data_layout == "NXC":
            arguments = {"groups": p.groups, "data_format": "NXC", "output_padding": extra}
            return onednn.ConvTranspose(strides, begin, end, list(p.dilation), **arguments), _filter(case)
        pads: dict[str, Any] = {"pads_begin": begin, "pads_end": end, "output_padding": extra}
        if p.groups > 1:
            return openvino.GroupConvolutionBackpropData(strides, dilations=list(p.dilation), **pads), case.weights
        return openvino.ConvolutionBackpropData(strides, dilations=list(p.dilation), **pads), case.weights[0]


def _filter_format(problem: Problem) -> str:
    return "XIO" if problem.data_layout == "NXC" else "IOX"


def _filter(case: Case) -> NDArray[Any]:
    """`[G*ci, co, K...]` for IOX, `[K..., G*ci, co]` for XIO."""
    if case.problem.data_layout == "NCX":
        return case.dense_weights
    return np.ascontiguousarray(np.moveaxis(case.dense_weights, (0, 1), (-2, -1)))


def _note(layer: Any, data: NDArray[Any]) -> str:
    info = layer.info
    return f"{layer.algorithm(data.shape)}, compiled {info.compiled} in {info.compile_ms:.1f} ms"
