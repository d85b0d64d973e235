"""The windows of the oneDNN Graph operators. Nothing here is shared with OpenVINO: their SAME rules differ."""

from __future__ import annotations

from collections.abc import Callable

from unstride.dialects._operator import RuleTable
from unstride.dialects._rules import Axis, Rule
from unstride.errors import ShapeError

__all__ = ["BACKPROP_TABLE", "FORWARD_TABLE", "GRADIENT_TABLE", "RULES"]


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# -- ConvolutionBackpropData: a.size is X, a.wanted is Y ---------------------------------------------------------------


def _wanted(a: Axis) -> int:
    assert a.wanted is not None
    return a.wanted


def _require_convolution(a: Axis, pads: int) -> None:
    """Y must be a size whose convolution gives X; anything else has no gradient."""
    y = _wanted(a)
    if (y + pads - a.extent) // a.stride + 1 != a.size:
        least = a.full - pads
        rule = f"a convolution of size {y} on spatial axis {a.index} does not give {a.size}"
        fix = f"ask for a size from {max(least, 0)} to {least + a.stride - 1}"
        raise ShapeError("output_shape", y, rule, fix)


def _explicit(a: Axis) -> tuple[int, int]:
    _require_convolution(a, a.pad_begin + a.pad_end)
    return a.pad_begin, _wanted(a)


def _halves(a: Axis) -> tuple[int, int]:
    return (a.full - _wanted(a) + a.output_padding) // 2, _wanted(a)


def _upper(a: Axis) -> tuple[int, int]:
    total = a.full - _wanted(a) + a.output_padding
    return total - total // 2, _wanted(a)


def _valid_at_runtime(a: Axis) -> tuple[int, int]:
    _require_convolution(a, 0)
    return 0, _wanted(a)


def _same_at_runtime(a: Axis) -> int:
    """The total padding of the forward convolution that gives ceil(Y/s)."""
    y = _wanted(a)
    if _ceil_div(y, a.stride) != a.size:
        rule = f"SAME needs ceil(Y/stride) == {a.size} on spatial axis {a.index}"
        fix = f"ask for a size from {(a.size - 1) * a.stride + 1} to {a.size * a.stride}"
        raise ShapeError("output_shape", y, rule, fix)
    return max(0, a.extent - (y % a.stride or a.stride))


def _same_lower_at_runtime(a: Axis) -> tuple[int, int]:
    return (_same_at_runtime(a) + 1) // 2, _wanted(a)


def _same_upper_at_runtime(a: Axis) -> tuple[int, int]:
    return _same_at_runtime(a) // 2, _wanted(a)


# -- ConvTransposeBackpropData: a.size is Y, the answer is X -----------------------------------------------------------


def _gradient_size(a: Axis, pads: int) -> int:
    """X = (Y + pads - ke - op)/s + 1; with an output_padding the division must be exact, without it rounds down."""
    steps, rest = divmod(a.size + pads - a.extent - a.output_padding, a.stride)
    if a.output_padding and rest:
        rule = f"no ConvTranspose with output_padding {a.output_padding} gives this size on spatial axis {a.index}"
        fix = f"use output_padding {(a.output_padding + rest) % a.stride}"
        raise ShapeError("output_delta", a.size, rule, fix)
    return steps + 1


def _gradient_explicit(a: Axis) -> tuple[int, int]:
    return a.pad_begin, _gradient_size(a, a.pad_begin + a.pad_end)


def _gradient_valid(a: Axis) -> tuple[int, int]:
    return 0, _gradient_size(a, 0)


def _gradient_same(a: Axis) -> tuple[int, int]:
    """(total padding, X). The output_padding at the far end is set aside first: ConvTranspose added it last."""
    own = a.size - a.output_padding
    total = max(0, (_ceil_div(own, a.stride) - 1) * a.stride + a.extent - own)
    return total, _gradient_size(a, total) if a.output_padding else _ceil_div(a.size, a.stride)


def _gradient_same_upper(a: Axis) -> tuple[int, int]:
    total, x = _gradient_same(a)
    return total // 2, x


def _gradient_same_lower(a: Axis) -> tuple[int, int]:
    total, x = _gradient_same(a)
    return total - total // 2, x


def _unpadded(a: Axis) -> Axis:
    """The axis as the engine sees it: it has no output_padding in the gradient."""
    return Axis(a.index, a.size, a.wanted, a.kernel, a.stride, a.dilation, a.pad_begin, a.pad_end, 0)


# -- ConvTranspose: a.size is X, the answer is Y -----------------------------------------------------------------------


def _forward_explicit(a: Axis) -> tuple[int, int]:
    return a.pad_begin, a.full - a.pad_begin - a.pad_end + a.output_padding


def _forward_valid(a: Axis) -> tuple[int, int]:
    return 0, a.full + a.output_padding


def _forward_same_upper(a: Axis) -> tuple[int, int]:
    total = max(0, a.extent - a.stride)
    return total // 2, a.full - total + a.output_padding


def _forward_same_lower(a: Axis) -> tuple[int, int]:
    total = max(0, a.extent - a.stride)
    return (total + 1) // 2, a.full - total + a.output_padding


# -- tables ------------------------------------------------------------------------------------------------------------

_DOC_BACKPROP = "oneDNN Graph ConvolutionBackpropData-1"
_DOC_GRADIENT = "oneDNN Graph ConvTransposeBackpropData-1"
_DOC_FORWARD = "oneDNN Graph ConvTranspose-1"
_ENGINE = "oneDNN Graph 3.2, CPU"

_BACKPROP_RULES = {
    ("both", "none"): Rule(
        "onednn.backprop.none",
        _DOC_BACKPROP,
        "auto_pad none",
        "begin = pb; needs (Y + pb + pe - ke) // s + 1 == X",
        _explicit,
    ),
    ("spec", "halves"): Rule(
        "onednn.backprop.spec.halves",
        _DOC_BACKPROP,
        "auto_pad valid or same_lower",
        "t = full - Y + op; begin = t // 2",
        _halves,
    ),
    ("spec", "same_upper"): Rule(
        "onednn.backprop.spec.same_upper",
        _DOC_BACKPROP,
        "auto_pad same_upper",
        "t = full - Y + op; end = t // 2; begin = t - end",
        _upper,
    ),
    ("runtime", "valid"): Rule(
        "onednn.backprop.runtime.valid",
        _ENGINE,
        "auto_pad valid",
        "begin = 0; needs (Y - ke) // s + 1 == X",
        _valid_at_runtime,
    ),
    ("runtime", "same_lower"): Rule(
        "onednn.backprop.runtime.same_lower",
        _ENGINE,
        "auto_pad same_lower",
        "t = max(0, ke - s if Y % s == 0 else ke - Y % s); begin = (t + 1) // 2; needs ceil(Y / s) == X",
        _same_lower_at_runtime,
    ),
    ("runtime", "same_upper"): Rule(
        "onednn.backprop.runtime.same_upper",
        _ENGINE,
        "auto_pad same_upper",
        "t = max(0, ke - s if Y % s == 0 else ke - Y % s); begin = t // 2; needs ceil(Y / s) == X",
        _same_upper_at_runtime,
    ),
}

BACKPROP_TABLE: RuleTable = {
    ("spec", "none", True): _BACKPROP_RULES["both", "none"],
    ("spec", "valid", True): _BACKPROP_RULES["spec", "halves"],
    ("spec", "same_lower", True): _BACKPROP_RULES["spec", "halves"],
    ("spec", "same_upper", True): _BACKPROP_RULES["spec", "same_upper"],
    ("runtime", "none", True): _BACKPROP_RULES["both", "none"],
    ("runtime", "valid", True): _BACKPROP_RULES["runtime", "valid"],
    ("runtime", "same_lower", True): _BACKPROP_RULES["runtime", "same_lower"],
    ("runtime", "same_upper", True): _BACKPROP_RULES["runtime", "same_upper"],
}

_EXACT = "needs op == 0 or (y + t - ke) % s == 0"
_GRADIENT_SAME = "X = ceil(y / s); t = max(0, (X - 1)*s + ke - y)"

# auto_pad -> (the document's formula, the engine's, which never reads output_padding, the function)
_GRADIENT_RULES: dict[str, tuple[str, str, Callable[[Axis], tuple[int, int]]]] = {
    "none": (
        f"y = Y - op; t = pb + pe; begin = pb; X = (y + t - ke) // s + 1; {_EXACT}",
        "begin = pb; X = (Y + pb + pe - ke) // s + 1",
        _gradient_explicit,
    ),
    "valid": (
        f"y = Y - op; t = 0; begin = 0; X = (y + t - ke) // s + 1; {_EXACT}",
        "begin = 0; X = (Y - ke) // s + 1",
        _gradient_valid,
    ),
    "same_upper": (
        f"y = Y - op; {_GRADIENT_SAME}; begin = t // 2; {_EXACT}",
        f"y = Y; {_GRADIENT_SAME}; begin = t // 2",
        _gradient_same_upper,
    ),
    "same_lower": (
        f"y = Y - op; {_GRADIENT_SAME}; begin = t - t // 2; {_EXACT}",
        f"y = Y; {_GRADIENT_SAME}; begin = t - t // 2",
        _gradient_same_lower,
    ),
}


def _gradient_rules(pad: str) -> tuple[Rule, Rule]:
    """(spec, runtime) of one auto_pad."""
    document, engine, solve = _GRADIENT_RULES[pad]
    spec = Rule(f"onednn.gradient.spec.{pad}", _DOC_GRADIENT, f"auto_pad {pad}", document, solve)
    when = f"auto_pad {pad} (output_padding never read)"
    return spec, Rule(f"onednn.gradient.runtime.{pad}", _ENGINE, when, engine, lambda a: solve(_unpadded(a)))


GRADIENT_TABLE: RuleTable = {
    (rules, pad, False): rule
    for pad in _GRADIENT_RULES
    for rules, rule in zip(("spec", "runtime"), _gradient_rules(pad), strict=True)
}

_FORWARD_RULES = {
    "none": Rule(
        "onednn.forward.none",
        _DOC_FORWARD,
        "auto_pad none",
        "begin = pb; Y = full - pb - pe + op",
        _forward_explicit,
    ),
    "valid": Rule("onednn.forward.valid", _DOC_FORWARD, "auto_pad valid", "begin = 0; Y = full + op", _forward_valid),
    "same_upper": Rule(
        "onednn.forward.same_upper",
        _DOC_FORWARD,
        "auto_pad same_upper",
        "t = max(0, ke - s); begin = t // 2; Y = full - t + op",
        _forward_same_upper,
    ),
    "same_lower": Rule(
        "onednn.forward.same_lower",
        _DOC_FORWARD,
        "auto_pad same_lower",
        "t = max(0, ke - s); begin = (t + 1) // 2; Y = full - t + op",
        _forward_same_lower,
    ),
}

FORWARD_TABLE: RuleTable = {
    (rules, pad, False): rule for rules in ("spec", "runtime") for pad, rule in _FORWARD_RULES.items()
}

RULES = (*_BACKPROP_RULES.values(), *GRADIENT_TABLE.values(), *_FORWARD_RULES.values())
