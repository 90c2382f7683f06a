"""Gradients meet on the owner, and the update happens there."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import Strategy
from evener.engine.reduction import sum_on_owner
from evener.locality import beside_inputs

OWNER = "/device:CPU:1"


def test_dense_gradients_are_added_on_the_owner() -> None:
    total = sum_on_owner([tf.ones([2]), None, tf.ones([2])], OWNER)
    assert total.numpy().tolist() == [2.0, 2.0]
    assert total.device.endswith("CPU:1")


def test_slices_are_joined_and_stay_slices() -> None:
    slices = [
        tf.IndexedSlices(tf.ones([1, 2]), tf.constant([k]), tf.constant([5, 2])) for k in (3, 3)
    ]
    total = sum_on_owner(slices, OWNER)
    assert isinstance(total, tf.IndexedSlices)
    assert total.indices.numpy().tolist() == [3, 3]
    mixed = sum_on_owner([*slices, tf.ones([5, 2])], OWNER)
    assert mixed.numpy()[3].tolist() == [3.0, 3.0]


def test_nothing_adds_up_to_nothing() -> None:
    assert sum_on_owner([None, None], OWNER) is None


def train_graph(optimizer: keras.optimizers.Optimizer) -> tuple[tf.Graph, Strategy, keras.Model]:
    strategy = Strategy(devices=["cpu:1", "cpu:2"], shares=[3, 1])
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,))] + [layers.Dense(8) for _ in range(4)])
        model.compile(optimizer, "mse")
    x, y = np.ones((8, 8), "f4"), np.ones((8, 8), "f4")
    model.train_on_batch(x, y)
    step = tf.function(model.train_function.steps.train, autograph=False)
    graph = step.get_concrete_function((tf.constant(x), tf.constant(y))).graph
    return graph, strategy, model


def update_operations(graph: tf.Graph, model: keras.Model) -> dict[str, list[tf.Operation]]:
    """Operations that write to each large optimizer or model variable, by its name."""
    handles = {inner.name: outer for outer, inner in graph.captures if outer.dtype == tf.resource}
    homes = {v.value.handle._id: v for v in [*model.variables, *model.optimizer.variables]}
    writes: dict[str, list[tf.Operation]] = {}
    for op in graph.get_operations():
        if not op.type.startswith("Assign") and not is_update(op):
            continue
        for given in op.inputs:
            handle = handles.get(given.name)
            variable = None if handle is None else homes.get(handle._id)
            if variable is not None and len(variable.shape) == 2:
                writes.setdefault(variable.path, []).append(op)
    return writes


def is_update(op: tf.Operation) -> bool:
    """Return whether this is a call of an update that several variables share."""
    return op.type == "StatefulPartitionedCall" and "update" in op.get_attr("f").name


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0),
        lambda: keras.optimizers.AdamW(use_ema=True),
    ],
    ids=["adam", "clipped", "averaged"],
)
def test_the_update_of_every_variable_runs_on_its_owner(make: object) -> None:
    graph, strategy, model = train_graph(make())
    owner = {v.path: v.device for v in strategy.ledger.variables}
    writes = update_operations(graph, model)
    assert len(writes) >= 8
    for path, operations in writes.items():
        for op in operations:
            # A variable is always read where it is; TensorFlow names no device for that.
            values = [
                t for t in op.inputs
                if t.op.type not in ("Placeholder", "ReadVariableOp") and t.shape.rank
            ]  # fmt: skip
            assert {device_of(t) for t in values} <= {owner[path]}, path
            assert device_of(op) == owner[path], path


def device_of(thing: tf.Tensor | tf.Operation) -> str:
    spec = tf.DeviceSpec.from_string(thing.device)
    return f"{(spec.device_type or '?').lower()}:{spec.device_index}"


def test_a_sum_waits_for_its_own_gradients_only() -> None:
    graph, _, model = train_graph(keras.optimizers.SGD(0.1))
    writes = update_operations(graph, model)
    last = writes[model.layers[-1].kernel.path][0]
    reached, todo = set(), [last]
    while todo:
        op = todo.pop()
        if op in reached:
            continue
        reached.add(op)
        todo += [t.op for t in op.inputs] + list(op.control_inputs)
    others = [op for layer in model.layers[:-1] for op in writes[layer.kernel.path]]
    sums = {op.inputs[0].op for op in others}
    assert all(is_update(op) for op in others)
    assert not sums & reached


def test_operations_without_a_device_follow_their_largest_input() -> None:
    @tf.function(autograph=False)
    def step(small: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:2"):
            large = tf.ones([10]) * small
        with beside_inputs():
            clipped = large * small
            branch = tf.cond(small > 0, lambda: clipped * 2.0, lambda: clipped)
        step.device = clipped.device
        return branch

    step(tf.ones([]))
    assert step.device.endswith("CPU:2")


def test_replicas_do_not_wait_for_each_other() -> None:
    strategy = Strategy(devices=["cpu:1", "cpu:2"], shares=[3, 1])
    with strategy.scope():
        model = keras.Sequential([keras.Input((4, 3)), layers.Dense(5)])
        # On outputs of rank 3, TensorFlow checks shapes, which makes the function stateful.
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss)
    x, y = np.ones((8, 4, 3), "f4"), np.ones((8, 4), "i4")
    model.train_on_batch(x, y)
    step = tf.function(model.train_function.steps.train, autograph=False)
    graph = step.get_concrete_function((tf.constant(x), tf.constant(y))).graph
    calls = [
        op
        for op in graph.get_operations()
        if op.type == "StatefulPartitionedCall" and not is_update(op)
    ]
    assert len(calls) == 2
    assert not {op.type for call in calls for op in call.control_inputs} & {calls[0].type}
