"""What all operators share: from attributes and shapes to a Resolution, and from there to arrays.

A dialect supplies its attributes, its rule table and how it reads its filter; everything else is here. Nothing in this
file needs NumPy until an operator is called with arrays.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from unstride.dialects import _attributes as read
from unstride.dialects._rules import Axis, Rule, Window
from unstride.errors import DTypeError, RuleWarning, ShapeError, SizeLimitError, UnstrideError
from unstride.problem import FILTER_LAYOUTS, MAX_AXES, MAX_EXTENT, Problem, Structure

if TYPE_CHECKING:
    from unstride.runtime.execute import Layer

__all__ = ["Attributes", "Operator", "Resolution"]

RuleTable = Mapping[tuple[str, str, bool], Rule]

_OTHER = {"spec": "runtime", "runtime": "spec"}
_ACCURACIES = {"strict": "strict", "standard": "standard", "fast": "fast"}


@dataclass(frozen=True)
class Attributes:
    """The attributes of an operator with one value for each spatial axis of the call."""

    auto_pad: str
    strides: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    dilations: tuple[int, ...]
    output_padding: tuple[int, ...]

    @classmethod
    def per_axis(cls, rank: int, auto_pad: str | None, **given: int | Sequence[int] | None) -> Attributes:
        """Spread what was given over `rank` axes; a list of another length is an error."""
        lists = {name: _spread(name, value, rank) for name, value in given.items()}
        return cls(auto_pad or "", **lists)


def _spread(name: str, value: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """One value per axis: a list as it is, one integer on each axis, None as the neutral value."""
    if value is None:
        value = 1 if name in ("strides", "dilations") else 0
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) != rank:
        raise ShapeError(name, values, f"the call has {rank} spatial axes", f"give {name} {rank} values")
    return values


@dataclass(frozen=True)
class Resolution:
    """What a call means: the Problem, the rule that gave each axis its window, and what the other rule set says.

    `other` is None where the dialect has one rule set, or where the other one refuses the call (`refusal` says why).
    """

    problem: Problem
    rules: str
    windows: tuple[Window, ...]
    other_rules: str | None
    other: tuple[Window, ...] | None
    refusal: str | None
    warning: str | None


class Operator:
    """The behaviour of every operator object; the classes of the dialects are frozen dataclasses on top of it."""

    document: ClassVar[str]
    _direction: ClassVar[str] = "scatter"
    _table: ClassVar[RuleTable]
    _data_name: ClassVar[str] = "data"

    # -- what a dialect supplies ------------------------------------------------------------------------------------

    @property
    def rule_set(self) -> str | None:
        """ "spec" or "runtime"; None where document and engine agree."""
        rules: str | None = getattr(self, "rules", None)
        return rules

    def attributes(self, rank: int) -> Attributes:
        """The attributes for a call with this many spatial axes."""
        raise NotImplementedError

    def _data_layout(self) -> str:
        return "NCX"

    def _read_filter(self, shape: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...], str]:
        """(groups, ci, co, kernel, filter_layout) of a filter of this shape."""
        raise NotImplementedError

    def _wanted(self, given: tuple[int, ...] | None, batch: int, channels: int, rank: int) -> tuple[int, ...] | None:
        """The spatial sizes that the caller asks for, or None."""
        if given is None:
            return None
        if len(given) != rank:
            fix = f"pass {rank} sizes without batch and channels"
            raise ShapeError("output_shape", given, f"holds the {rank} spatial sizes only", fix)
        return given

    def _refuse_output_shape(self, given: object) -> None:
        """For operators whose documents know no such input."""
        if given is not None:
            name = type(self).__name__
            raise ShapeError("output_shape", given, f"{name} has no output_shape input", "leave output_shape out")

    def _remarks(self, axes: Sequence[Axis], windows: Sequence[Window]) -> list[str]:
        """Further reasons to warn, beyond a disagreement of the rule sets."""
        return []

    # -- pure integers ----------------------------------------------------------------------------------------------

    def structure(self, filter_shape: Sequence[int], dtype: str = "f32") -> Structure:
        """All that machine code and packed weights depend on: the case before any data size is known."""
        shape = read.shape("filter", filter_shape)
        element = read.dtype(dtype)
        if not 3 <= len(shape) <= MAX_AXES + 3:
            raise ShapeError("filter", shape, f"needs 1 to {MAX_AXES} spatial axes besides its channel axes")
        if 0 in shape:
            raise ShapeError("filter", shape, "every size of the filter must be at least 1")
        groups, ci, co, kernel, layout = self._read_filter(shape)
        attributes = self.attributes(len(kernel))
        layout = canonical_filter_layout(layout, groups, ci, co, kernel)
        sizes = (groups, ci, co, kernel, attributes.strides, attributes.dilations)
        return Structure(self._direction, element, self._data_layout(), layout, *sizes)

    def resolve(
        self,
        data_shape: Sequence[int],
        filter_shape: Sequence[int],
        output_shape: Sequence[int] | None = None,
        dtype: str = "f32",
    ) -> Resolution:
        """What this operator computes for these shapes, by which rule, and what the other rule set would say."""
        shapes = read.shape(self._data_name, data_shape), read.shape("filter", filter_shape)
        wanted = None if output_shape is None else read.shape("output_shape", output_shape)
        return _resolved(self, *shapes, wanted, read.dtype(dtype))

    def _resolve(
        self,
        data_shape: tuple[int, ...],
        filter_shape: tuple[int, ...],
        output_shape: tuple[int, ...] | None,
        dtype: str,
    ) -> Resolution:
        structure = self.structure(filter_shape, dtype)
        batch, spatial = self._read_data(data_shape, structure)
        result_channels = structure.groups * (structure.co if self._direction == "scatter" else structure.ci)
        wanted = self._wanted(output_shape, batch, result_channels, structure.rank)
        axes = self._axes(structure, spatial, wanted)
        windows = self._windows(self.rule_set or "spec", axes)
        problem = self._assemble(structure, batch, spatial, windows)
        other_rules, other, refusal = None, None, None
        if self.rule_set is not None:
            other_rules = _OTHER[self.rule_set]
            try:
                other = self._windows(other_rules, axes)
            except UnstrideError as error:
                refusal = str(error)
        warning = self._warning(axes, windows, other_rules, other, refusal)
        return Resolution(problem, self.rule_set or "spec", windows, other_rules, other, refusal, warning)

    def problem(
        self,
        data_shape: Sequence[int],
        filter_shape: Sequence[int],
        output_shape: Sequence[int] | None = None,
        dtype: str = "f32",
    ) -> Problem:
        """The dialect-free case behind this call."""
        return self.resolve(data_shape, filter_shape, output_shape, dtype).problem

    def infer_shape(
        self, data_shape: Sequence[int], filter_shape: Sequence[int], output_shape: Sequence[int] | None = None
    ) -> tuple[int, ...]:
        """The shape of the result: pure integers, no arrays.

        A RuleWarning is issued when the other rule set would give another shape; `resolve` tells about windows too.
        """
        resolution = self.resolve(data_shape, filter_shape, output_shape)
        sizes = [window.size for window in resolution.windows]
        if resolution.warning and (resolution.other is None or sizes != [w.size for w in resolution.other]):
            warnings.warn(resolution.warning, RuleWarning, stacklevel=2)
        return resolution.problem.result_shape

    def explain(
        self,
        data_shape: Sequence[int],
        filter_shape: Sequence[int],
        output_shape: Sequence[int] | None = None,
        dtype: str = "f32",
    ) -> str:
        """The resolved window of each axis, the rule that gave it and its source, and the same layer elsewhere."""
        from unstride.explain.text import explain

        return explain(self, self.resolve(data_shape, filter_shape, output_shape, dtype))

    def _repr_html_(self) -> str:
        """A notebook shows the picture of a small call."""
        from unstride.explain.page import operator_html

        return operator_html(self)

    # -- arrays -----------------------------------------------------------------------------------------------------

    def compile(
        self,
        filter: Any,
        bias: Any = None,
        activation: str | tuple[str, float] | None = None,
        threads: int | None = None,
        accuracy: str = "standard",
        tune: bool = False,
    ) -> Layer:
        """Pack the weights once; the returned layer takes data of any batch and spatial size.

        With `tune`, the first call with a new shape times the kernels that come into question, for up to a third of a
        second, and the winner is remembered in the code cache. `Layer.algorithm(shape)` says what it is.
        """
        from unstride.runtime import buffers, execute

        weights = buffers.as_input(filter, "filter")
        dtype = buffers.dtype_name(weights, "filter")
        structure = self.structure(weights.shape, dtype)
        options: dict[str, Any] = {
            "activation": read.activation(activation),
            "threads": None if threads is None else read.integer("threads", threads, 1),
            "accuracy": read.choice("accuracy", accuracy, _ACCURACIES),
            "tune": read.flag("tune", tune),
        }
        resolve = partial(self._resolve_call, tuple(weights.shape), dtype)
        weights = weights.reshape(structure.filter_shape)
        return execute.Layer(structure, resolve, weights, self._bias(bias, structure), **options)

    def _run(self, data: Any, filter: Any, bias: Any, output_shape: Any, out: Any) -> Any:
        from unstride.runtime import buffers, execute

        values, weights = buffers.as_input(data, self._data_name), buffers.as_input(filter, "filter")
        dtype = buffers.dtype_name(values, self._data_name)
        if buffers.dtype_name(weights, "filter") != dtype:
            given = (dtype, buffers.dtype_name(weights))
            raise DTypeError("filter", given, f"{self._data_name} and filter must have one type", "convert one of them")
        resolution = self.resolve(values.shape, weights.shape, output_shape, dtype)
        if resolution.warning:
            warnings.warn(resolution.warning, RuleWarning, stacklevel=3)
        problem = resolution.problem
        weights = weights.reshape(problem.filter_shape)
        return execute.run(problem, values, weights, self._bias(bias, problem.structure), out=out)

    def _resolve_call(
        self, filter_shape: tuple[int, ...], dtype: str, data_shape: Sequence[int], output_shape: Any
    ) -> tuple[Problem, str | None]:
        resolution = self.resolve(data_shape, filter_shape, output_shape, dtype)
        return resolution.problem, resolution.warning

    def _bias(self, bias: Any, structure: Structure) -> Any:
        """The bias as an array with one value per channel of the result, or None."""
        if bias is None:
            return None
        from unstride.runtime import buffers

        values = buffers.as_input(bias, "bias")
        channels = structure.groups * (structure.co if self._direction == "scatter" else structure.ci)
        if values.shape != (channels,):
            raise ShapeError("bias", values.shape, f"needs one value for each of the {channels} channels of the result")
        if buffers.dtype_name(values, "bias") != structure.dtype:
            raise DTypeError("bias", buffers.dtype_name(values), f"must have the filter's type {structure.dtype}")
        return values

    # -- the steps of resolve ---------------------------------------------------------------------------------------

    def _read_data(self, shape: tuple[int, ...], structure: Structure) -> tuple[int, tuple[int, ...]]:
        """(batch, spatial sizes) after checking rank and channels against the filter."""
        name = self._data_name
        if len(shape) != structure.rank + 2:
            rule = f"needs rank {structure.rank + 2} for a filter with {structure.rank} spatial axes"
            raise ShapeError(name, shape, rule, "add the batch axis, or pass the filter of this rank")
        batch, *rest = shape
        channels, spatial = (rest[0], rest[1:]) if structure.data_layout == "NCX" else (rest[-1], rest[:-1])
        expected = structure.groups * (structure.ci if self._direction == "scatter" else structure.co)
        if channels != expected:
            order = ", ".join(structure.data_layout)
            raise ShapeError(name, shape, f"the filter needs {expected} channels, in the order [{order}]")
        if min(spatial) < 1:
            raise ShapeError(name, shape, "every spatial size must be at least 1")
        return batch, tuple(spatial)

    def _axes(self, structure: Structure, spatial: tuple[int, ...], wanted: tuple[int, ...] | None) -> tuple[Axis, ...]:
        attributes = self.attributes(structure.rank)
        columns = (
            spatial,
            (None,) * structure.rank if wanted is None else wanted,
            structure.kernel,
            structure.stride,
            structure.dilation,
            attributes.pads_begin,
            attributes.pads_end,
            attributes.output_padding,
        )
        return tuple(Axis(index, *row) for index, row in enumerate(zip(*columns, strict=True)))

    def _windows(self, rules: str, axes: tuple[Axis, ...]) -> tuple[Window, ...]:
        rule = self._table[rules, self.attributes(len(axes)).auto_pad, axes[0].wanted is not None]
        return tuple(_window(rule, axis, self._direction) for axis in axes)

    def _assemble(
        self, structure: Structure, batch: int, spatial: tuple[int, ...], windows: tuple[Window, ...]
    ) -> Problem:
        sizes = tuple(window.size for window in windows)
        small, large = (spatial, sizes) if self._direction == "scatter" else (sizes, spatial)
        s = structure
        head = (s.direction, s.dtype, s.data_layout, s.filter_layout, batch, s.groups, s.ci, s.co)
        begin = tuple(window.begin for window in windows)
        return Problem(*head, small, s.kernel, s.stride, s.dilation, begin, large)

    def _warning(
        self,
        axes: tuple[Axis, ...],
        windows: tuple[Window, ...],
        other_rules: str | None,
        other: tuple[Window, ...] | None,
        refusal: str | None,
    ) -> str | None:
        reasons = self._remarks(axes, windows)
        chosen = self.rule_set
        if refusal is not None:
            reasons.append(f"the {chosen} rules accept this call, the {other_rules} rules refuse it ({refusal})")
        if other is not None and not all(a.same_as(b) for a, b in zip(windows, other, strict=True)):
            reasons.append(f"the {chosen} rules give {_numbers(windows)}, the {other_rules} rules {_numbers(other)}")
        if not reasons:
            return None
        advice = f"; choose with rules='spec' or rules='runtime' (now {chosen!r})" if chosen else ""
        return f"{type(self).__name__}: " + "; ".join(reasons) + advice


@lru_cache(maxsize=1024)
def _resolved(
    operator: Operator,
    data_shape: tuple[int, ...],
    filter_shape: tuple[int, ...],
    output_shape: tuple[int, ...] | None,
    dtype: str,
) -> Resolution:
    """Calls repeat themselves; operators are frozen and equal by value, so an answer can be kept."""
    return operator._resolve(data_shape, filter_shape, output_shape, dtype)


def canonical_filter_layout(layout: str, groups: int, ci: int, co: int, kernel: tuple[int, ...]) -> str:
    """The first of FILTER_LAYOUTS with the same bytes in memory: axes of size 1 have no place in memory.

    Two dialects may name one memory order differently (with one group, OGIX and GOIX are the same); this makes their
    Problems equal.

    >>> canonical_filter_layout("GOIX", 1, 3, 4, (3, 3))
    'OGIX'
    """
    sizes = {"G": groups, "I": ci, "O": co, "X": prod(kernel)}

    def order(name: str) -> list[str]:
        return [letter for letter in name if sizes[letter] > 1]

    return next(name for name in FILTER_LAYOUTS if order(name) == order(layout))


def _window(rule: Rule, axis: Axis, direction: str) -> Window:
    begin, size = rule.solve(axis)
    least = 0 if direction == "scatter" else 1
    where = f"spatial axis {axis.index}"
    if size < least:
        fix = "use smaller pads or larger data"
        raise ShapeError("output_shape", size, f"the result's size on {where} would be below {least}", fix)
    if size > MAX_EXTENT or abs(begin) > MAX_EXTENT:
        rule_text = f"the result's size and begin on {where} may be at most {MAX_EXTENT}"
        raise SizeLimitError("output_shape", max(size, abs(begin)), rule_text)
    return Window(begin, size, rule)


def _numbers(windows: tuple[Window, ...]) -> str:
    begins, sizes = [w.begin for w in windows], [w.size for w in windows]
    return f"begin {begins} and size {sizes} by {windows[0].rule.formula!r}"
