"""The dialect-free case: one window per spatial axis, and how the arrays lie in memory.

Per spatial axis, with X the small side, Y the large side, K the kernel, s the stride and d the dilation:

    scatter:  F[f] = sum over (i, k) with i*s + k*d == f of x[i] * w[k];   y[o] = F[o + begin],  o in [0, Y)
    gather:   x[i] = sum over k of y[i*s + k*d - begin] * w[k],            y = 0 outside [0, Y)

`scatter` reads `[N, G*ci, X...]` and writes `[N, G*co, Y...]`; `gather`, its adjoint, reads the large side and writes
the small one with the same weights `[G, ci, co, K...]`. Everything that pads, auto_pad, output_padding and
output_shape can say has become `begin` and `Y` here. Below this file there are no strings to parse, no None and no
dialects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from unstride._lazy import lazy
from unstride.errors import AttributeValueError, FormatError, ShapeError, SizeLimitError

__all__ = ["DATA_LAYOUTS", "DTYPE_BYTES", "FILTER_LAYOUTS", "Problem", "Structure"]

DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8}
DATA_LAYOUTS = ("NCX", "NXC")
# Memory order of the filter: G groups, I channels of the small side, O channels of the large side, X the kernel axes.
FILTER_LAYOUTS = ("GIOX", "OGIX", "XGIO", "XOGI", "XGOI", "GOIX")
MAX_EXTENT = 2**31 - 1
MAX_BYTES = 2**46
MAX_AXES = 16

_FIELDS = ("n", "g", "i", "o", "x", "k", "s", "d", "b", "y")
_TEXT_LIMIT = 2000


@dataclass(frozen=True)
class Structure:
    """What is known of a case before any array size is: all that machine code and packed weights depend on."""

    direction: str
    dtype: str
    data_layout: str
    filter_layout: str
    groups: int
    ci: int
    co: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.kernel)

    @property
    def itemsize(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """The filter with its group axis apart, in filter_layout order."""
        sizes = {"G": (self.groups,), "I": (self.ci,), "O": (self.co,), "X": self.kernel}
        return tuple(size for letter in self.filter_layout for size in sizes[letter])


@dataclass(frozen=True)
class Problem:
    """One transposed convolution (or its adjoint), fully resolved.

    >>> axes = (224, 224), (3, 3), (2, 2), (1, 1), (1, 1), (447, 447)
    >>> p = Problem("scatter", "f32", "NCX", "GIOX", 1, 1, 20, 10, *axes)
    >>> str(p)
    'scatter f32 NCX GIOX n1 g1 i20 o10 x224x224 k3x3 s2x2 d1x1 b1x1 y447x447'
    >>> Problem.parse(str(p)) == p
    True
    """

    direction: str
    dtype: str
    data_layout: str
    filter_layout: str
    batch: int
    groups: int
    ci: int
    co: int
    x: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    begin: tuple[int, ...]
    y: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_choice("direction", self.direction, ("scatter", "gather"))
        _check_choice("dtype", self.dtype, tuple(DTYPE_BYTES))
        _check_choice("data_layout", self.data_layout, DATA_LAYOUTS)
        _check_choice("filter_layout", self.filter_layout, FILTER_LAYOUTS)
        if not 1 <= len(self.x) <= MAX_AXES:
            raise ShapeError("x", self.x, f"1 to {MAX_AXES} spatial axes are supported")
        for name in ("kernel", "stride", "dilation", "begin", "y"):
            values = getattr(self, name)
            if len(values) != len(self.x):
                raise ShapeError(name, values, f"needs one value for each of the {len(self.x)} spatial axes")
        lower = {"batch": 0, "groups": 1, "ci": 1, "co": 1, "x": 1, "kernel": 1, "stride": 1, "dilation": 1, "y": 0}
        for name, least in lower.items():
            values = getattr(self, name)
            for value in values if isinstance(values, tuple) else (values,):
                _check_extent(name, value, least)
        for value in self.begin:
            _check_extent("begin", value, -MAX_EXTENT)
        for name, shape in (("data", self.data_shape), ("filter", self.filter_shape), ("result", self.result_shape)):
            if prod(max(size, 1) for size in shape) * self.itemsize > MAX_BYTES:
                raise SizeLimitError(name, shape, f"an array may hold at most 2**{MAX_BYTES.bit_length() - 1} bytes")

    @lazy
    def structure(self) -> Structure:
        """This case without its sizes."""
        head = (self.direction, self.dtype, self.data_layout, self.filter_layout, self.groups, self.ci, self.co)
        return Structure(*head, self.kernel, self.stride, self.dilation)

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.x)

    @property
    def itemsize(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @lazy
    def extent(self) -> tuple[int, ...]:
        """The dilated kernel size of each axis, (K-1)*d + 1."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @lazy
    def full(self) -> tuple[int, ...]:
        """The size of the uncropped scatter result of each axis, s*(X-1) + extent."""
        return tuple(s * (x - 1) + e for x, s, e in zip(self.x, self.stride, self.extent, strict=True))

    @lazy
    def small_shape(self) -> tuple[int, ...]:
        """The array with the X sizes, in data_layout order."""
        return self._array_shape(self.groups * self.ci, self.x)

    @lazy
    def large_shape(self) -> tuple[int, ...]:
        """The array with the Y sizes, in data_layout order."""
        return self._array_shape(self.groups * self.co, self.y)

    @property
    def data_shape(self) -> tuple[int, ...]:
        return self.small_shape if self.direction == "scatter" else self.large_shape

    @property
    def result_shape(self) -> tuple[int, ...]:
        return self.large_shape if self.direction == "scatter" else self.small_shape

    @property
    def filter_shape(self) -> tuple[int, ...]:
        return self.structure.filter_shape

    @lazy
    def macs(self) -> int:
        """Multiply-accumulates that reach the result: what any exact method needs, holes and crop not counted."""
        axes = zip(self.x, self.kernel, self.stride, self.dilation, self.begin, self.y, strict=True)
        pairs = prod(_pairs_below(b + y, *axis) - _pairs_below(b, *axis) for *axis, b, y in axes)
        return self.batch * self.groups * self.ci * self.co * pairs

    @property
    def flops(self) -> int:
        return 2 * self.macs

    @lazy
    def bytes(self) -> int:
        """Bytes of data, filter and result together: the least traffic of a cold call."""
        return self.itemsize * sum(prod(shape) for shape in (self.data_shape, self.filter_shape, self.result_shape))

    def _array_shape(self, channels: int, spatial: tuple[int, ...]) -> tuple[int, ...]:
        if self.data_layout == "NCX":
            return (self.batch, channels, *spatial)
        return (self.batch, *spatial, channels)

    def __str__(self) -> str:
        lists = (self.x, self.kernel, self.stride, self.dilation, self.begin, self.y)
        numbers = [str(v) for v in (self.batch, self.groups, self.ci, self.co)]
        numbers += ["x".join(map(str, values)) for values in lists]
        head = (self.direction, self.dtype, self.data_layout, self.filter_layout)
        return " ".join((*head, *(letter + number for letter, number in zip(_FIELDS, numbers, strict=True))))

    @classmethod
    def parse(cls, text: str) -> Problem:
        """The inverse of `str(problem)`; case and extra white space are forgiven."""
        fix = "write it like 'scatter f32 NCX GIOX n1 g1 i20 o10 x224 k3 s2 d1 b1 y447'"
        if not isinstance(text, str) or len(text) > _TEXT_LIMIT:
            raise FormatError("problem", text, f"must be one line of at most {_TEXT_LIMIT} characters", fix)
        words = text.split()
        if len(words) != 4 + len(_FIELDS):
            raise FormatError("problem", text, f"needs {4 + len(_FIELDS)} words, has {len(words)}", fix)
        direction, dtype, data_layout, filter_layout, *rest = words
        values: list[tuple[int, ...]] = []
        for letter, word in zip(_FIELDS, rest, strict=True):
            if not re.fullmatch(rf"{letter}-?[0-9]{{1,20}}(x-?[0-9]{{1,20}})*", word.lower()):
                raise FormatError("problem", word, f"expected '{letter}' and integers joined by 'x'", fix)
            values.append(tuple(int(part) for part in word.lower()[1:].split("x")))
        if any(len(value) != 1 for value in values[:4]):
            raise FormatError("problem", text, "n, g, i and o take one integer each", fix)
        (n,), (g,), (i,), (o,), x, k, s, d, b, y = values
        layouts = (data_layout.upper(), filter_layout.upper())
        return cls(direction.lower(), dtype.lower(), *layouts, n, g, i, o, x, k, s, d, b, y)


def _pairs_below(limit: int, x: int, kernel: int, stride: int, dilation: int) -> int:
    """How many (i, k) with i < x and k < kernel have i*stride + k*dilation < limit; fast for any sizes."""
    # taps [0, whole) meet every i, taps [whole, some) meet ceil((limit - k*dilation) / stride) of them, the rest none
    whole = min(kernel, max(0, (limit - (x - 1) * stride - 1) // dilation + 1))
    some = min(kernel, max(0, (limit - 1) // dilation + 1))
    rest = some - whole
    last = limit - (some - 1) * dilation - 1
    return whole * x + (_floor_sum(rest, stride, dilation, last) + rest if rest > 0 else 0)


def _floor_sum(n: int, m: int, a: int, b: int) -> int:
    """The sum of (a*i + b) // m over i in [0, n), in as many steps as Euclid's algorithm takes."""
    total = 0
    while True:
        total += (n - 1) * n // 2 * (a // m) + n * (b // m)
        top = (a % m) * n + b % m
        if top < m:
            return total
        (n, b), a, m = divmod(top, m), m, a % m


def _check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise AttributeValueError(field, value, f"must be one of {', '.join(choices)}")


def _check_extent(field: str, value: object, least: int) -> None:
    if type(value) is not int:
        raise AttributeValueError(field, value, "must be an integer")
    if not least <= value <= MAX_EXTENT:
        raise AttributeValueError(field, value, f"must be between {least} and {MAX_EXTENT}")
