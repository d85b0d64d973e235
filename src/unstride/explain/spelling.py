"""One Problem, written for each framework that can say it, and the reason where one cannot.

The code uses `x` for the data and `w` for the filter. OpenVINO, oneDNN and ONNX are spelled as operators of this
package, whose attributes have the documents' names; `layout` says how the framework wants both arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unstride.problem import Problem

__all__ = ["Spelling", "spellings"]


@dataclass(frozen=True)
class Spelling:
    """`code` is empty where the framework cannot say it; `reason` then tells why."""

    framework: str
    code: str
    layout: str
    reason: str


def spellings(problem: Problem) -> tuple[Spelling, ...]:
    """The same case for OpenVINO, oneDNN, ONNX, torch, Keras and JAX, in this order."""
    found = []
    for framework, spell in _SPELLERS.items():
        try:
            code, layout = spell(problem)
            found.append(Spelling(framework, code, layout, ""))
        except _CannotSayError as error:
            found.append(Spelling(framework, "", "", str(error)))
    return tuple(found)


class _CannotSayError(Exception):
    """Why a framework has no words for a case."""


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise _CannotSayError(reason)


# -- the two sides of the window ---------------------------------------------------------------------------------------


def _crop_end(p: Problem) -> tuple[int, ...]:
    """What the window leaves out behind its end; negative where it reaches past the full extent."""
    return tuple(full - begin - y for full, begin, y in zip(p.full, p.begin, p.y, strict=True))


def _pads(p: Problem) -> tuple[list[int], list[int], list[int]]:
    """(pads_begin, pads_end, output_padding) for documents in which all three are at least 0."""
    _require(min(p.begin) >= 0, "the window begins before the first output, and pads cannot be negative")
    end = _crop_end(p)
    return list(p.begin), [max(0, e) for e in end], [max(0, -e) for e in end]


def _filter_order(p: Problem, names: dict[str, str]) -> str:
    """The filter format of this memory order; another order must be transposed to the first format of `names`."""
    return names.get(p.filter_layout, next(iter(names.values())))


def _listed(p: Problem) -> str:
    return f"strides={list(p.stride)}, dilations={list(p.dilation)}"


# -- one function per framework: (code, layout), or _CannotSayError ----------------------------------------------------


def _openvino(p: Problem) -> tuple[str, str]:
    _require(
        p.direction == "scatter", "the gradient is OpenVINO's ordinary Convolution, which this package does not have"
    )
    grouped = p.groups > 1 or p.rank > 3
    name = "GroupConvolutionBackpropData" if grouped else "ConvolutionBackpropData"
    layout = "x [N, C, X...], w [G, C_IN, C_OUT, K...]" if grouped else "x [N, C, X...], w [C_IN, C_OUT, K...]"
    if min(p.begin) < 0:
        return f"openvino.{name}({_listed(p)}, {_openvino_sized(p)}", layout
    begin, end, padding = _pads(p)
    return f"openvino.{name}({_listed(p)}, pads_begin={begin}, pads_end={end}, output_padding={padding})(x, w)", layout


def _openvino_sized(p: Problem) -> str:
    """A begin below 0 exists only in the document's rule for output_shape: t = full - Y + op, begin = t // 2."""
    padding = [2 * begin - full + y for begin, full, y in zip(p.begin, p.full, p.y, strict=True)]
    padding = [op + 1 if op == -1 else op for op in padding]
    _require(min(padding) >= 0, "the window begins before the first output")
    return f'auto_pad="same_lower", output_padding={padding}, rules="spec")(x, w, output_shape={list(p.y)})'


_ONEDNN_FORMATS = {"GIOX": "IOX", "OGIX": "OIX", "XGIO": "XIO", "XOGI": "XOI"}


def _onednn(p: Problem) -> tuple[str, str]:
    name = "ConvTranspose" if p.direction == "scatter" else "ConvTransposeBackpropData"
    _require(min(p.data_shape[1:]) > 0, "the data is empty")
    begin, end, padding = _pads(p)
    order = _filter_order(p, _ONEDNN_FORMATS)
    formats = f'groups={p.groups}, data_format="{p.data_layout}", filter_format="{order}"'
    pads = f"pads_begin={begin}, pads_end={end}, output_padding={padding}"
    return f"onednn.{name}({_listed(p)}, {pads}, {formats})(x, w)", f"x {p.data_layout}, w {order}"


def _onnx(p: Problem) -> tuple[str, str]:
    _require(p.direction == "scatter", "the gradient is ONNX's ordinary Conv, which this package does not have")
    begin, end, padding = _pads(p)
    layout, head = "x [N, C, X...], w [C, M/group, K...]", f"onnx.ConvTranspose({_listed(p)}, group={p.groups}"
    limits = [max(s, d) for s, d in zip(p.stride, p.dilation, strict=True)]
    if all(op < limit for op, limit in zip(padding, limits, strict=True)):
        return f"{head}, pads={begin + end}, output_padding={padding})(x, w)", layout
    _require(all(op == 0 or b == 0 for op, b in zip(padding, begin, strict=True)), "ONNX has no such output_padding")
    for auto_pad, up in (("NOTSET", 0), ("SAME_UPPER", 1)):
        chosen = [_onnx_padding(*axis, up) for axis in zip(p.begin, p.full, p.y, limits, strict=True)]
        if None not in chosen:
            sized = f'auto_pad="{auto_pad}", output_padding={chosen}, output_shape={list(p.y)}'
            return f"{head}, {sized})(x, w)", layout
    raise _CannotSayError("ONNX needs output_padding below max(stride, dilation)")


def _onnx_padding(begin: int, full: int, y: int, limit: int, up: int) -> int | None:
    """The output_padding with which output_shape gives this begin: t = max(0, full + op - Y), halved down or up."""
    if begin == 0 and y >= full:
        return 0
    for total in (2 * begin, 2 * begin - 1 + 2 * up):
        padding = total - full + y
        if total >= 0 and 0 <= padding < limit:
            return padding
    return None


def _torch(p: Problem) -> tuple[str, str]:
    _require(p.rank <= 3, "torch has 1 to 3 spatial axes")
    common = f"stride={p.stride}, dilation={p.dilation}, groups={p.groups}"
    layout = "x [N, C, X...], w [C_IN, C_OUT/groups, K...]"
    if p.direction == "gather":
        layout = "x [N, C, Y...], w [C_OUT, C_IN/groups, K...]"
        source = _torch_pad("x", p.begin, _crop_end(p), p.y)
        return f"F.conv{p.rank}d({source}, w, {common})", layout
    symmetric = [2 * b - full + y for b, full, y in zip(p.begin, p.full, p.y, strict=True)]
    limits = [max(s, d) for s, d in zip(p.stride, p.dilation, strict=True)]
    call = f"F.conv_transpose{p.rank}d(x, w, {common}"
    if min(p.begin) >= 0 and all(0 <= op < limit for op, limit in zip(symmetric, limits, strict=True)):
        return f"{call}, padding={p.begin}, output_padding={tuple(symmetric)})", layout
    negated = [-b for b in p.begin], [-e for e in _crop_end(p)]
    return _torch_pad(f"{call})", *negated, p.full), layout


def _torch_pad(code: str, before: Sequence[int], after: Sequence[int], sizes: Sequence[int]) -> str:
    """Zeros where positive, crop where negative; torch lists the last axis first."""
    if not any((*before, *after)):
        return code
    crops = [max(0, -b) + max(0, -a) for b, a in zip(before, after, strict=True)]
    _require(
        all(c < n for c, n in zip(crops, sizes, strict=True)),
        "the window misses the array, and torch cannot crop it all",
    )
    pairs = [pair for axis in reversed(range(len(before))) for pair in (before[axis], after[axis])]
    return f"F.pad({code}, {tuple(pairs)})"


def _keras(p: Problem) -> tuple[str, str]:
    _require(p.rank <= 3, "Keras has 1 to 3 spatial axes")
    scatter = p.direction == "scatter"
    _require(p.groups == 1 or not scatter, "Keras' transposed layers have no groups")
    strided, dilated = max(p.stride) > 1, max(p.dilation) > 1
    _require(not (strided and dilated), "Keras does not combine strides with dilation")
    padding = next((name for name in ("valid", "same") if _keras_windows(p, name) == (p.begin, p.y, p.x)), None)
    _require(padding is not None, "neither padding='valid' nor 'same' gives this window")
    kind = f"Conv{p.rank}DTranspose" if scatter else f"Conv{p.rank}D"
    filters = p.co if scatter else p.groups * p.ci
    order = "channels_first" if p.data_layout == "NCX" else "channels_last"
    groups = f", groups={p.groups}" if p.groups > 1 else ""
    lists = f"{p.kernel}, strides={p.stride}, dilation_rate={p.dilation}"
    kernel = "[K..., filters, C]" if scatter else "[K..., C/groups, filters]"
    code = (
        f'keras.layers.{kind}({filters}, {lists}, padding="{padding}", data_format="{order}"{groups}, use_bias=False)'
    )
    return code, f"x {p.data_layout}, kernel {kernel}"


def _keras_windows(p: Problem, padding: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(begin, Y, X) that Keras gives: transposed layers compute Y from X, plain ones X from Y."""
    axes = list(zip(p.x, p.y, p.extent, p.stride, strict=True))
    if p.direction == "scatter":
        if padding == "valid":
            return (0,) * p.rank, tuple(x * s + max(e - s, 0) for x, _, e, s in axes), p.x
        return tuple(max(e - s, 0) // 2 for _, _, e, s in axes), tuple(x * s for x, _, _, s in axes), p.x
    if padding == "valid":
        return (0,) * p.rank, p.y, tuple((y - e) // s + 1 for _, y, e, s in axes)
    small = tuple(-(-y // s) for _, y, _, s in axes)
    totals = (max(0, (x - 1) * s + e - y) for x, (_, y, e, s) in zip(small, axes, strict=True))
    return tuple(total // 2 for total in totals), p.y, small


def _jax(p: Problem) -> tuple[str, str]:
    letters = "DHW"[-p.rank :] if p.rank <= 3 else "".join(map(str, range(p.rank)))
    data = f"NC{letters}"
    if p.direction == "gather":
        padding = list(zip(p.begin, _crop_end(p), strict=True))
        sizes = f"window_strides={p.stride}, padding={padding}, rhs_dilation={p.dilation}"
        numbers = f'("{data}", "OI{letters}", "{data}")'
        code = f"lax.conv_general_dilated(x, w, {sizes}, feature_group_count={p.groups}, dimension_numbers={numbers})"
        return code, "x [N, C, Y...], w [C_OUT, C_IN/groups, K...]"
    # a scatter is a gather over holes with the kernel turned round
    before = [e - 1 - b for e, b in zip(p.extent, p.begin, strict=True)]
    after = [e - 1 - c for e, c in zip(p.extent, _crop_end(p), strict=True)]
    padding = list(zip(before, after, strict=True))
    ones = (1,) * p.rank
    sizes = f"window_strides={ones}, padding={padding}, lhs_dilation={p.stride}, rhs_dilation={p.dilation}"
    weights = f"jnp.flip(w, {tuple(range(2, 2 + p.rank))})"
    if p.groups > 1:
        apart, joined = (p.groups, p.ci, p.co, *p.kernel), (p.ci, p.groups * p.co, *p.kernel)
        weights = f"{weights}.reshape{apart}.swapaxes(0, 1).reshape{joined}"
    numbers = f'("{data}", "IO{letters}", "{data}")'
    code = (
        f"lax.conv_general_dilated(x, {weights}, {sizes}, feature_group_count={p.groups}, dimension_numbers={numbers})"
    )
    return code, "x [N, C, X...], w [C_IN, C_OUT/groups, K...]"


_SPELLERS: dict[str, Callable[[Problem], tuple[str, str]]] = {
    "OpenVINO": _openvino,
    "oneDNN": _onednn,
    "ONNX": _onnx,
    "torch": _torch,
    "Keras": _keras,
    "JAX": _jax,
}
