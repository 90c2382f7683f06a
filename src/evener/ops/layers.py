"""Biases, normalisation, softmax and cross entropy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evener.graph.nodes import Node, Tensor
from evener.graph.symbols import SymbolTable
from evener.ops.axes import alike, beside, beside_last, broadcast, leading, like_input
from evener.ops.decision import ROWS, WHOLE, Decision
from evener.ops.known import first_sharded, rank_of, shape_of, sharded
from evener.ops.pooling import per_sample
from evener.ops.registry import (
    IN_PLACE,
    IndexLimit,
    Shapes,
    equal_sizes_rule,
    index_limit_rule,
    rule,
    shape_rule,
    traits,
)
from evener.ops.states import SUM, State, is_first, is_shardable


@rule("BiasAdd", inputs=(ROWS, WHOLE))
def _bias(node: Node, states: Sequence[State]) -> Decision | None:
    return beside(node, states, [_channels(node)])


@shape_rule("BiasAddGrad")
def _bias_gradient_shape(table: SymbolTable, node: Node) -> Shapes:
    return [(shape_of(node.inputs[0])[_channels(node)],)]


@rule("BiasAddGrad", inputs=ROWS)
def _gradient_of_bias(node: Node, states: Sequence[State]) -> Decision | None:
    state = sharded(states[0])
    is_of_rows = state.axis != _channels(node)
    return Decision(inputs=(state,), outputs=(SUM,)) if is_of_rows else None


def _channels(node: Node) -> int:
    rank = rank_of(node.inputs[0])
    return 1 if node.text_attr("data_format") == "NCHW" else rank - 1


@shape_rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits")
def _cross_entropy_shape(table: SymbolTable, node: Node) -> Shapes:
    logits, labels = (t.shape for t in node.inputs)
    if node.op == "SoftmaxCrossEntropyWithLogits":
        logits = broadcast([logits, labels])
    return None if logits is None else [logits[:1], logits]


@rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", inputs=ROWS)
def _cross_entropy(node: Node, states: Sequence[State]) -> Decision | None:
    target = first_sharded([state for state in states if is_first(state)])
    if not all(is_shardable(t.shape, target) for t in node.inputs):
        return None
    return Decision(inputs=(target, target), outputs=(target, target))


@index_limit_rule("SparseSoftmaxCrossEntropyWithLogits")
def _classes_limit(node: Node, shapes: Mapping[Tensor, tuple[int, ...]]) -> IndexLimit:
    del shapes
    shape = node.inputs[0].shape
    return node.inputs[1], shape[-1] if shape else None


@shape_rule("FusedBatchNorm", "FusedBatchNormV3", "FusedBatchNormGradV3")
def _normalized_shape(table: SymbolTable, node: Node) -> Shapes:
    shape, static = node.inputs[0].shape, node.static_shapes[0]
    if not shape or not static or static[0] is not None or len(static) != len(shape):
        return None
    rest = (own if size is None else size for own, size in zip(shape[1:], static[1:], strict=True))
    return [(shape[0], *rest), *[None] * (len(node.outputs) - 1)]


rule("Softmax", "LogSoftmax", inputs=ROWS)(beside_last(1))
rule("LRN", "LRNGrad", inputs=ROWS)(per_sample)
shape_rule("BatchNormWithGlobalNormalization", "BiasAdd", "LRN", "LRNGrad")(like_input(0))
shape_rule("LogSoftmax", "Softmax")(like_input(0))
equal_sizes_rule("SoftmaxCrossEntropyWithLogits")(alike)
equal_sizes_rule("SparseSoftmaxCrossEntropyWithLogits")(leading)
traits("BiasAdd Softmax", IN_PLACE)
