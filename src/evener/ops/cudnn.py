"""Recurrent layers of cuDNN, by which Keras computes LSTM and GRU on GPUs.

What the forward operation reserves for the backward one has no rows: it is the part's own, and
nobody else can read it. So where the one is computed on parts, the other is.
"""

from __future__ import annotations

from collections.abc import Sequence

from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.decision import ROWS, WHOLE, Decision
from evener.ops.registry import Shapes, Trait, rule, shape_rule, traits
from evener.ops.states import FIRST, REPLICATED, SUM, UNSET, Sharded, State, Unset, is_shardable


@shape_rule("CudnnRNNV3")
def _forward_shape(table: SymbolTable, node: Node) -> Shapes:
    """``input, h, c, ...`` to ``output, h, c, reserved, reserved on the host``."""
    (data, hidden, cell), static = (t.shape for t in node.inputs[:3]), node.static_shapes[0]
    if data is None or static is None or static[-1] is None:
        return [None, hidden, cell, None, None]
    return [(*data[:-1], static[-1]), hidden, cell, None, None]


@shape_rule("CudnnRNNBackpropV3")
def _backward_shape(table: SymbolTable, node: Node) -> Shapes:
    return [tensor.shape for tensor in node.inputs[:4]]


@rule("CudnnRNNV3", inputs=(ROWS, ROWS, ROWS, WHOLE, ROWS))
def _forward(node: Node, states: Sequence[State]) -> Decision | None:
    """``input, h, c, parameters, lengths`` to ``output, h, c, reserved, reserved on the host``."""
    rows, cell, lengths = _rows(node), _cell(node), node.inputs[4]
    data = (0, 1, 2) if cell != REPLICATED else (0, 1)
    if states[0] != rows or node.attrs["dropout"].f:
        return None
    if not all(is_shardable(node.inputs[k].shape, rows) for k in data):
        return None
    if not is_shardable(lengths.shape, FIRST):
        return None
    return Decision(
        inputs=(rows, rows, cell, REPLICATED, FIRST),
        outputs=(rows, rows, cell, UNSET, UNSET),
        needs_samples=True,
    )


@rule("CudnnRNNBackpropV3", inputs=(ROWS, ROWS, ROWS, WHOLE, *[ROWS] * 9))
def _backward(node: Node, states: Sequence[State]) -> Decision | None:
    """The same inputs and outputs, with the gradients of the latter, to those of the former."""
    if not isinstance(states[11], Unset):
        return None
    rows, cell = _rows(node), _cell(node)
    values = (rows, rows, cell)
    return Decision(
        inputs=(*values, REPLICATED, FIRST, *values, *values, UNSET, UNSET),
        outputs=(*values, SUM),
        needs_samples=True,
    )


def _rows(node: Node) -> Sharded:
    return Sharded(1 if node.bool_attr("time_major") else 0)


def _cell(node: Node) -> State:
    """Return the state of what only an LSTM has; of the others it is a scalar without meaning."""
    return _rows(node) if node.text_attr("rnn_mode") == "lstm" else REPLICATED


traits("CudnnRNNV3", Trait.OF_LAYERS)
