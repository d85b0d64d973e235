"""Write docs/operators.md from the package's own rule tables: `python docs/make_operators.py`.

A test runs `page()` again and compares, so the page cannot fall behind the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from unstride.dialects import Rule, functional, onednn, onnx, openvino
from unstride.dialects._rules import Axis
from unstride.errors import UnstrideError

OPERATORS: tuple[tuple[str, Any, str, str], ...] = (
    ("openvino.ConvolutionBackpropData", openvino.ConvolutionBackpropData, "N C X...", "C_IN C_OUT K..."),
    (
        "openvino.GroupConvolutionBackpropData",
        openvino.GroupConvolutionBackpropData,
        "N G*C_IN X...",
        "G C_IN C_OUT K...",
    ),
    (
        "onednn.ConvolutionBackpropData",
        onednn.ConvolutionBackpropData,
        "NXC or NCX",
        "XIO = K... IC/g OC, OIX = OC IC/g K...",
    ),
    ("onednn.ConvTranspose", onednn.ConvTranspose, "NXC or NCX", "XIO, OIX, and the later XOI, IOX"),
    (
        "onednn.ConvTransposeBackpropData",
        onednn.ConvTransposeBackpropData,
        "NXC or NCX",
        "XIO, OIX, and the later XOI, IOX",
    ),
    ("onnx.ConvTranspose", onnx.ConvTranspose, "N C X...", "C M/g K..."),
    ("conv_transpose (torch's conventions)", functional.ConvTranspose, "N C X...", "C_IN C_OUT/g K..."),
)

INTRODUCTION = """# Operators and rules

<!-- written by docs/make_operators.py from the rule tables in src/unstride/dialects; do not edit by hand -->

Every operator of this family is one window on one sum. Per spatial axis, with `X` the size of the data, `K` the kernel,
`s` the stride and `d` the dilation:

    F[f] = sum over (i, k) with i*s + k*d == f of x[i] * w[k]      f in [0, full), zero everywhere else
    y[o] = F[o + begin]                                            o in [0, Y)

The kernel is not flipped. Two integers per axis, `begin` and `Y`, say everything that pads, auto_pad, output_padding
and output_shape can say; `begin` may be negative and `Y` may reach past the end, both of which add zeros. The gradient
operator ConvTransposeBackpropData reads the same window the other way:

    x[i] = sum over k of y[i*s + k*d - begin] * w[k]               y = 0 outside [0, Y)

Letters used below:

| letter | meaning |
|---|---|
| `ke` | dilated kernel, `(K-1)*d + 1` |
| `full` | all that the taps can reach, `s*(X-1) + ke` |
| `pb`, `pe`, `op` | pads_begin, pads_end, output_padding |
| `t` | total padding |
| `//` | floor division, also of negative numbers |
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, _operators(), _rules(), _disagreements(), _try_it()]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def _code(text: object) -> str:
    return f"`{text}`".replace("|", "\\|")


# -- operators -------------------------------------------------------------------------------------------------------


def _operators() -> str:
    rows = [[_code(name), _attributes(kind), _code(data), _code(filter)] for name, kind, data, filter in OPERATORS]
    note = (
        "Bold attributes are required. `rules` is `spec` (the document to the letter) or `runtime` (what the shipped\n"
        "engine does); where the two differ for the call at hand, a `RuleWarning` names both answers.\n"
    )
    return f"## Operators\n\n{_table(('operator', 'attributes', 'data', 'filter'), rows)}\n{note}"


def _attributes(kind: Any) -> str:
    said = []
    for field in fields(kind):
        if field.name.startswith("_"):
            continue
        required = field.default is MISSING and field.default_factory is MISSING
        said.append(f"**{field.name}**" if required else f"{field.name}={_code(repr(field.default))}")
    return ", ".join(said)


# -- rules -----------------------------------------------------------------------------------------------------------


def _rules() -> str:
    sections = ["## Every rule\n"]
    groups = {"OpenVINO": openvino.RULES, "oneDNN Graph": onednn.RULES, "ONNX": onnx.RULES, "torch": functional.RULES}
    for name, rules in groups.items():
        rows = [[_code(rule.name), rule.when, _code(rule.formula), rule.document] for rule in rules]
        sections.append(f"### {name}\n\n{_table(('rule', 'when', 'window', 'source'), rows)}")
    return "\n".join(sections)


# -- where document and engine part -----------------------------------------------------------------------------------

# X=4, K=4, s=2, d=1: full = 10. Sizes below, at and above it, with an odd total padding among them.
_EXAMPLE = {"index": 0, "size": 4, "kernel": 4, "stride": 2, "dilation": 1, "pad_begin": 1, "pad_end": 1}
_EXAMPLE_SIZES = (7, 8, 10, 13)


def _disagreements() -> str:
    text = (
        "## Where document and engine part\n\n"
        "The `begin` that each rule set gives for X=4, K=4, stride 2, pads 1 and 1, output_padding 0 (`full` is 10)\n"
        "and several values of output_shape. Bold: the two differ.\n\n"
    )
    tables = (
        ("OpenVINO", openvino.ConvolutionBackpropData),
        ("oneDNN ConvolutionBackpropData", onednn.ConvolutionBackpropData),
    )
    return text + "\n".join(f"### {name}\n\n{_grid(kind._table)}" for name, kind in tables)


def _grid(rules: Any) -> str:
    words = [word for side, word, sized in rules if side == "spec" and sized]
    rows = []
    for word in words:
        spec, runtime = rules["spec", word, True], rules["runtime", word, True]
        cells = [_cell(_begin(spec, y), _begin(runtime, y)) for y in _EXAMPLE_SIZES]
        rows.append([_code(word), *cells])
    return _table(("auto_pad", *(f"Y={y}: spec, runtime" for y in _EXAMPLE_SIZES)), rows)


def _begin(rule: Rule, wanted: int) -> str:
    try:
        return str(rule.solve(Axis(**_EXAMPLE, wanted=wanted, output_padding=0))[0])
    except UnstrideError:
        return "refused"


def _cell(spec: str, runtime: str) -> str:
    return f"{spec}, {runtime}" if spec == runtime else f"**{spec}, {runtime}**"


def _try_it() -> str:
    return """## Ask about a call of your own

```console
$ unstride shape --data 1,8,4 --filter 8,8,4 --strides 2 --pads-begin 1 --pads-end 1 --output-shape 7
$ unstride explain --data 1,8,4 --filter 8,8,4 --strides 2 --auto-pad same_upper --output-shape 7
```
"""


if __name__ == "__main__":
    target = Path(__file__).with_name("operators.md")
    target.write_text(page(), encoding="utf-8")
    print(f"wrote {target.name}")
