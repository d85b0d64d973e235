"""One transposed convolution found in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from unstride.errors import FormatError

__all__ = ["FileLayer", "OptionalShape"]

OptionalShape = tuple[int | None, ...]
Loader = Callable[[], NDArray[Any]]


@dataclass(frozen=True)
class FileLayer:
    """An operator with what the file says of its inputs; its weights are read when they are asked for.

    `data_shape` holds None for a size the file leaves open. `weights_note` says why there are no stored weights, or is
    empty. `shape_is_computed` is true where the model computes output_shape itself, so that a caller must give it.
    """

    name: str
    operator: Any
    dialect: str
    dtype: str
    data_shape: OptionalShape
    filter_shape: tuple[int, ...]
    output_shape: tuple[int, ...] | None = None
    shape_is_computed: bool = False
    weights_note: str = ""
    load_weights: Loader | None = field(default=None, repr=False, compare=False)
    load_bias: Loader | None = field(default=None, repr=False, compare=False)

    def weights(self) -> NDArray[Any]:
        """The filter as an array of `dtype` and `filter_shape`, read now."""
        if self.load_weights is None:
            raise FormatError(f"layer {self.name}", self.weights_note, "the file stores no weights for this layer")
        return self.load_weights()

    def bias(self) -> NDArray[Any] | None:
        """The bias as a vector of `dtype`, read now, or None."""
        return None if self.load_bias is None else self.load_bias()
