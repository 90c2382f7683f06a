"""Arguments of the functions of a step: numbers, tensors and sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from evener.graph.nodes import Tensor
from evener.ops.states import State


@dataclass(frozen=True, slots=True)
class NumberArgument:
    """Value of a symbol, a scalar.

    Attributes:
        name: Name of the symbol: ``"B"``, ``"b"``, ``"o"`` or another symbol of the step.
    """

    name: str


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """Tensor of the step.

    Attributes:
        tensor: Tensor.
        state: State in which it is given: a part of it, or the whole.
    """

    tensor: Tensor
    state: State


@dataclass(frozen=True, slots=True)
class SumArgument:
    """Sum of a tensor of the step over the micro-batches before.

    Attributes:
        tensor: Tensor of which every micro-batch gives a partial sum.
    """

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class InputArgument:
    """Input of the only operation that a function runs.

    Attributes:
        index: Index of the input.
    """

    index: int


Argument: TypeAlias = NumberArgument | TensorArgument | SumArgument | InputArgument
