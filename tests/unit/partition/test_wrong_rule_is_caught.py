"""A rule that says what is not the same is seen: by the tests of rules, and by `verify=True`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.errors import EvenerWarning
from evener.graph.nodes import Node
from evener.graph.ops.registry import OPERATIONS
from evener.graph.ops.states import REPLICATED, ROWS, WHOLE, Decision, ShardingRule, State

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]
X = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")


def cumulative(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cumsum(x, axis=0) * x)


def each_part_by_itself(node: Node, states: Sequence[State]) -> Decision:
    """Wrong: the sums of a part begin with those of the parts before it."""
    return Decision(inputs=(states[0], REPLICATED), outputs=(states[0],))


def test_the_rule_as_it_is() -> None:
    step = evener.distribute(cumulative, devices=DEVICES, shares=[13, 4, 7], verify=True)
    step(X)
    assert step.verifications[0].results < 1e-5


def test_a_wrong_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ShardingRule(decide=each_part_by_itself, inputs=(ROWS, WHOLE))
    monkeypatch.setattr(OPERATIONS["Cumsum"], "rule", wrong)
    step = evener.distribute(cumulative, devices=DEVICES, shares=[13, 4, 7], verify=True)
    with pytest.warns(EvenerWarning, match="ENG-080"):
        step(X)
    assert step.verifications[0].results > 1e-2
