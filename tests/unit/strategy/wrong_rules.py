"""Wrong rules, each with a program that it gives wrong numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from evener._tf_private import graphs
from evener.graph.nodes import Node
from evener.graph.ops.registry import OPERATIONS, operation
from evener.graph.ops.states import (
    FIRST,
    PART_BATCH,
    PARTIALS,
    REPLICATED,
    ROWS,
    SUM,
    Decision,
    Numbers,
    ShardingRule,
    State,
    part_sizes,
)

Decide = Callable[[Node, Sequence[State]], Decision | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongRule:
    """A rule that says what is not the same, and a program of rows whose number it makes wrong."""

    op: str
    decide: Decide
    program: Callable[[Any], Any]
    is_partial: bool = False

    def install(self, monkeypatch: Any) -> None:
        """Put it in the place of the rule."""
        takes = (ROWS | PARTIALS,) * len(graphs.input_names(self.op))
        field = "partial_rule" if self.is_partial else "rule"
        wrong = {field: ShardingRule(decide=self.decide, inputs=takes)}
        monkeypatch.setitem(OPERATIONS, self.op, replace(operation(self.op), **wrong))


def gives(state: State) -> Decide:
    """Return a rule: each part by itself, and the result is in a state."""

    def decide(node: Node, states: Sequence[State]) -> Decision | None:
        if all(state == REPLICATED for state in states):
            return None
        return Decision(inputs=tuple(states), outputs=(state,) * len(node.outputs))

    return decide


def mean_of_means(node: Node, states: Sequence[State]) -> Decision | None:
    if states[0] != FIRST:
        return None

    def lower(builder: Any, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        own = builder.op("Mean", inputs, node.attrs)[0]
        return builder.op("RealDiv", [own, builder.constant(3, tf.float32)], {"T": tf.float32})

    return Decision(inputs=(FIRST, REPLICATED), outputs=(SUM,), lower=lower)


def product_of_a_part(node: Node, states: Sequence[State]) -> Decision | None:
    if node.bool_attr("transpose_a"):
        return gives(REPLICATED)(node, states)
    return Decision(inputs=tuple(states), outputs=(states[0],))


def draws_from_the_start(node: Node, states: Sequence[State]) -> Decision | None:
    shape = node.outputs[0].shape
    assert shape is not None
    local = Numbers(part_sizes(shape, FIRST))
    return Decision(inputs=(local, *states[1:]), outputs=(FIRST,))


def counts_from_the_start(node: Node, states: Sequence[State]) -> Decision | None:
    return Decision(inputs=(Numbers((0,)), Numbers((PART_BATCH,)), Numbers((1,))), outputs=(FIRST,))


def _longest(x: Any) -> Any:
    count = tf.reduce_max(tf.cast(tf.abs(x[:, 0]) * 2, tf.int32)) + 1
    return tf.reduce_mean(tf.cast(tf.range(count), tf.float32)) * tf.reduce_mean(x)


def _drawn(x: Any) -> Any:
    return tf.reduce_sum(x * tf.random.stateless_uniform(tf.shape(x), [1, 2]))


def _weighted(x: Any) -> Any:
    return tf.reduce_sum(x[:, 0] * tf.cast(tf.range(tf.shape(x)[0]), tf.float32))


def _joined(x: Any) -> Any:
    both = tf.concat([x, x * x], 0)
    return tf.reduce_sum(tf.cumsum(both, 0) * both)


WRONG_RULES = {
    "cumulative sums begin anew": WrongRule(
        op="Cumsum",
        decide=gives(FIRST),
        program=lambda x: tf.reduce_sum(tf.cumsum(x, axis=0) * x),
    ),
    "a partial sum is taken for the sum": WrongRule(
        op="Sum", decide=gives(REPLICATED), program=lambda x: tf.square(tf.reduce_sum(x))
    ),
    "a mean of means": WrongRule(
        op="Mean", decide=mean_of_means, program=lambda x: tf.reduce_mean(x, 0)[0]
    ),
    "the size is a part's own maximum": WrongRule(
        op="Max", decide=gives(REPLICATED), program=_longest
    ),
    "all parts draw the same": WrongRule(
        op="StatelessRandomUniformV2", decide=draws_from_the_start, program=_drawn
    ),
    "the order of blocks": WrongRule(op="ConcatV2", decide=gives(FIRST), program=_joined),
    "each part is reversed": WrongRule(
        op="ReverseV2",
        decide=gives(FIRST),
        program=lambda x: tf.reduce_sum(tf.reverse(x, [0]) * x),
    ),
    "each part is rolled": WrongRule(
        op="Roll", decide=gives(FIRST), program=lambda x: tf.reduce_sum(tf.roll(x, 1, 0) * x)
    ),
    "positions in a part": WrongRule(
        op="ArgMax",
        decide=gives(REPLICATED),
        program=lambda x: tf.reduce_sum(x[:, :1]) * tf.cast(tf.argmax(-x[:, 0], 0), tf.float32),
    ),
    "a product over samples": WrongRule(
        op="MatMul",
        decide=product_of_a_part,
        program=lambda x: tf.reduce_sum(tf.sin(tf.matmul(x, x, transpose_a=True))),
    ),
    "the square of a partial sum": WrongRule(
        op="Square",
        decide=gives(SUM),
        program=lambda x: tf.reduce_sum(tf.square(tf.reduce_sum(x, 0))),
        is_partial=True,
    ),
    "samples are counted from a part's first": WrongRule(
        op="Range", decide=counts_from_the_start, program=_weighted
    ),
}
