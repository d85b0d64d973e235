"""Golden test vectors for people who write compilers and runtimes, and the engines that can be asked about them.

    >>> from unstride.vectors import make_vectors
    >>> [vector.name for vector in make_vectors("onnx", count=2, seed=7)]
    ['onnx-0000', 'onnx-0001']

Every vector is exact: its data are integers so small that no order of summation rounds. Every vector knows what it
probes, and what the shipped engine of its dialect will make of it.
"""

from __future__ import annotations

from unstride.vectors.kit import Vector, make_vectors
from unstride.vectors.write import write_vectors

__all__ = ["Vector", "make_vectors", "write_vectors"]
