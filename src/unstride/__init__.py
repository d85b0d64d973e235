"""Transposed convolution and its gradient: the exact rules of five operator documents, and fast kernels for them.

    >>> from unstride import openvino
    >>> op = openvino.ConvolutionBackpropData(strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1])
    >>> op.infer_shape((1, 20, 224, 224), (20, 10, 3, 3))
    (1, 10, 447, 447)

Importing this package loads neither NumPy nor LLVM; the first call with arrays does.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from unstride._version import __version__
from unstride.dialects import onednn, onnx, openvino
from unstride.dialects.functional import conv_transpose
from unstride.errors import (
    AttributeNameError,
    AttributeValueError,
    DTypeError,
    FormatError,
    RuleWarning,
    ShapeError,
    SizeLimitError,
    UnstrideError,
)
from unstride.problem import Problem

if TYPE_CHECKING:
    from unstride.runtime.cache import cache_info, clear_cache
    from unstride.runtime.pool import set_threads, threads

__all__ = [
    "AttributeNameError",
    "AttributeValueError",
    "DTypeError",
    "FormatError",
    "Problem",
    "RuleWarning",
    "ShapeError",
    "SizeLimitError",
    "UnstrideError",
    "__version__",
    "cache_info",
    "clear_cache",
    "conv_transpose",
    "onednn",
    "onnx",
    "openvino",
    "set_threads",
    "threads",
]

# The dialects are public as unstride.<name>, in `import unstride.openvino` as well.
sys.modules.update({f"unstride.{name}": globals()[name] for name in ("onednn", "onnx", "openvino")})

_LAZY = {
    "cache_info": "unstride.runtime.cache",
    "clear_cache": "unstride.runtime.cache",
    "set_threads": "unstride.runtime.pool",
    "threads": "unstride.runtime.pool",
}


def __getattr__(name: str) -> Any:
    """The runtime's names load the runtime only when they are asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
