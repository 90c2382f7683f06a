"""Builder of the function that a part runs, as far as operations use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from evener.graph.dims import Size


class Builder(Protocol):
    """Adds nodes to a function; `partition.functions.FunctionBuilder` is the one there is.

    Attributes:
        may_be_on_cpu: Whether a CPU may be among the devices that call the function.
    """

    may_be_on_cpu: bool

    def copy(
        self, op: str, name: str, inputs: Sequence[str], attrs: Mapping[str, Any]
    ) -> list[str]:
        """Add a node with the attributes of a traced one; return its outputs."""
        ...

    def op(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any]) -> list[str]:
        """Add a node; return its outputs."""
        ...

    def is_argument(self, reference: str) -> bool:
        """Return whether a tensor is given to the function, and not computed in it."""
        ...

    def constant(self, value: Any, dtype: tf.DType) -> str:
        """Add a constant."""
        ...

    def number(self, size: Size, dtype: tf.DType | str) -> str:
        """Add a scalar: what a size is in the part that calls the function."""
        ...

    def vector(self, sizes: Sequence[Size], dtype: tf.DType | str) -> str:
        """Add a vector of sizes."""
        ...

    def element(self, vector: str, index: int, dtype: tf.DType) -> str:
        """Add the reading of one element of a vector."""
        ...

    def cast(self, reference: str, source: tf.DType, target: tf.DType) -> str:
        """Add a cast, unless the dtypes are equal."""
        ...
