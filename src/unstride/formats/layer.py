"""One transposed convolution found in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from unstride.errors import FormatError

__all__ = ["FileLayer", "OptionalShape", "check_layer_count"]

MAX_LAYERS = 4096

OptionalShape = tuple[int | None, ...]
Loader = Callable[[], NDArray[Any]]


def check_layer_count(count: int, file: str) -> None:
    """No model has thousands of transposed convolutions; a file that claims so only wants to keep us busy."""
    if count > MAX_LAYERS:
        raise FormatError(file, f"{count} transposed convolutions", f"at most {MAX_LAYERS} are read")


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
