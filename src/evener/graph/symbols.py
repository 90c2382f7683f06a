"""Symbols of a step: sizes and numbers that nobody knows before it runs, and their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tensorflow as tf

from evener.graph.dims import Dim, Size, symbol, symbols_of
from evener.graph.nodes import Tensor

_WIDE = frozenset({tf.int64, tf.uint32, tf.uint64})
"""Dtypes with numbers that are no int32. Those of uint64 keep their bits in an int64."""


@dataclass(frozen=True, slots=True)
class SymbolSource:
    """Source of the number of a symbol.

    Attributes:
        tensor: A tensor of the step.
        axis: The axis of it that has this size, or None if the symbol is a number in it.
        index: Index of the element that is the number, if ``axis`` is None.
    """

    tensor: Tensor
    axis: int | None
    index: int = 0


@dataclass(slots=True)
class SymbolTable:
    """Makes symbols, always the same for the same size or number.

    Attributes:
        symbols: Source of the number of each symbol; ``"B"`` is not among them.
        num_samples: The size of the batch, if the step was traced for batches of one size alone.
        shapes: Shapes that are known of tensors; None for sizes that are not known.
        values: Numbers that are known of constants.
        scope: The graph whose nodes are read: a body has symbols of its own.
    """

    symbols: dict[str, SymbolSource] = field(default_factory=dict)
    num_samples: int | None = None
    shapes: Mapping[Tensor, tuple[Size | None, ...]] = field(default_factory=dict)
    values: Mapping[Tensor, tuple[Size, ...]] = field(default_factory=dict)
    scope: int = 0
    _by_key: dict[object, Dim] = field(default_factory=dict)

    def new_symbol(self, tensor: Tensor, axis: int | None, index: int = 0) -> Dim:
        """Return a symbol for a size, or for a number in an integer tensor."""
        key = (tensor, axis, index)
        if key not in self._by_key:
            name = f"s{len(self.symbols)}"
            self.symbols[name] = SymbolSource(tensor, axis, index)
            self._by_key[key] = symbol(name)
        return self._by_key[key]

    def symbol_for(self, key: object, tensor: Tensor, index: int = 0) -> Dim:
        """Return the symbol for a number that is computed from others: always the same one.

        A body has symbols of its own: what it computes is not there outside of it.
        """
        key = (self.scope, key)
        if key not in self._by_key:
            self._by_key[key] = self.new_symbol(tensor, None, index)
        return self._by_key[key]

    def dtype_of(self, name: str) -> tf.DType:
        """Return the dtype in which the number of a symbol is handed on: it holds all of them."""
        source = self.symbols.get(name)
        is_wide = source is not None and source.axis is None and source.tensor.dtype in _WIDE
        return tf.int64 if is_wide else tf.int32

    def is_made_of_sizes(self, size: Size) -> bool:
        """Return whether no symbol of a size is a number that is computed from data."""
        return all(self.symbols[name].axis is not None for name in symbols_of(size) - {"B"})

    def is_of_list(self, size: Size) -> bool:
        """Return whether a size has a symbol that only a tensor list knows."""
        names = symbols_of(size) - {"B"}
        return any(self.symbols[name].tensor.dtype == tf.variant for name in names)
