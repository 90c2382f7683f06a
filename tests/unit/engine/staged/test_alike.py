"""Variables of one shape share one traced update, and are updated to the same bits."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener.engine.staged.alike import updated_alike
from evener.engine.staged.context import whole_batch
from evener.locality import beside_inputs

optimizers = keras.optimizers
KNOWN: dict[str, Callable[[], Any]] = {
    "adadelta": lambda: optimizers.Adadelta(0.1),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adam": lambda: optimizers.Adam(0.1, amsgrad=True, clipnorm=0.5),
    "adamax": lambda: optimizers.Adamax(0.1),
    "adamw": lambda: optimizers.AdamW(0.1, weight_decay=0.1, global_clipnorm=1.0),
    "lion": lambda: optimizers.Lion(0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "sgd": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "accumulating": lambda: optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "scaled": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.1), initial_scale=1.0),
}


def after_steps(make: Callable[[], Any], *, alike: bool) -> tuple[list[Any], Any]:
    """Take four steps on variables on two devices; return all values and the step's graph."""
    keras.utils.set_random_seed(1)
    shapes = [(3, 2), (2,), (3, 2), (2,), (3, 2), ()]
    variables = []
    for position, shape in enumerate(shapes):
        with tf.device(f"CPU:{position % 2}"):
            variables.append(keras.Variable(np.full(shape, 1.0 + position, "float32")))
    optimizer = make()
    optimizer.build(variables)

    @tf.function(autograph=False)
    def step(gradients: list[tf.Tensor]) -> None:
        sharing = updated_alike(optimizer) if alike else contextlib.nullcontext()
        with whole_batch(), beside_inputs(), sharing:
            optimizer.apply(gradients, variables)

    rng = np.random.default_rng(3)
    for _ in range(4):
        given = [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]
        step(given)
    values = [np.array(v) for v in (*variables, *optimizer.variables)]
    return values, step.get_concrete_function(given).graph


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_known_optimizers_share_updates(make: Callable[[], Any]) -> None:
    plain, graph = after_steps(make, alike=False)
    shared, smaller = after_steps(make, alike=True)
    for one, other in zip(plain, shared, strict=True):
        np.testing.assert_array_equal(one, other)
    updates = [f for f in _functions(smaller) if "update" in f.signature.name]
    # One each for (3, 2), (2,) and the scalar.
    assert len(updates) == 3
    assert not [f for f in _functions(graph) if "inference_update" in f.signature.name]


def test_a_call_is_on_the_device_of_its_variable() -> None:
    _, graph = after_steps(KNOWN["adam"], alike=True)
    calls = [op for op in graph.get_operations() if op.type == "StatefulPartitionedCall"]
    assert Counter(op.device[-5:] for op in calls) == {"CPU:0": 3, "CPU:1": 3}


class OfOnesOwn(keras.optimizers.SGD):
    """Steps in a way that depends on which variable it is."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Take steps of a size that grows with the variable's number."""
        rate = learning_rate * float(1 + self._get_variable_index(variable))
        super().update_step(gradient, variable, rate)


@pytest.mark.parametrize("make", [OfOnesOwn, optimizers.Nadam, optimizers.Lamb])
def test_others_update_every_variable_by_itself(make: Callable[[], Any]) -> None:
    plain, _ = after_steps(make, alike=False)
    shared, graph = after_steps(make, alike=True)
    for one, other in zip(plain, shared, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not [f for f in _functions(graph) if "inference_update" in f.signature.name]


def test_the_optimizer_is_left_as_it_was() -> None:
    optimizer = optimizers.SGD()
    optimizer.build([keras.Variable([1.0])])
    with tf.Graph().as_default(), updated_alike(optimizer):
        assert "update_step" in vars(optimizer)
    assert "update_step" not in vars(optimizer)


def _functions(graph: Any) -> list[Any]:
    return list(graph.as_graph_def().library.function)
