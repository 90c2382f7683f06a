"""A strategy of one replica: what programs ask of it, and what Keras does in it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener.devices.names import device_name
from evener.errors import EngineError, EvenerWarning
from evener.plan import Plan
from evener.strategy import Strategy
from exactness.xla_calls import recorded

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


@pytest.fixture
def strategy() -> Strategy:
    return Strategy(Plan.data_parallel(DEVICES, shares=[2, 1, 1]))


def test_a_program_sees_one_device(strategy: Strategy) -> None:
    assert strategy.num_replicas_in_sync == 1
    one_device = tf.distribute.OneDeviceStrategy("cpu:0").extended
    assert strategy.extended.worker_devices == one_device.worker_devices
    assert strategy.extended.parameter_devices == one_device.parameter_devices
    assert strategy.shares == (0.5, 0.25, 0.25)
    assert [replica.share for replica in strategy.plan.replicas] == pytest.approx([0.5, 0.25, 0.25])
    assert not strategy.extended.experimental_require_static_shapes
    assert strategy.extended.should_checkpoint and strategy.extended.should_save_summary
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy
        assert tf.distribute.in_cross_replica_context()


def test_a_plain_function_runs_eagerly_as_it_is_written(strategy: Strategy) -> None:
    seen = []

    def step(x: tf.Tensor, scale: float) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        seen.append((tf.executing_eagerly(), context.num_replicas_in_sync, x.shape.as_list()))
        assert context.replica_id_in_sync_group == 0
        return x * scale

    result = strategy.run(step, args=(tf.ones([4, 2]),), kwargs={"scale": 3.0})
    assert result.numpy().tolist() == [[3.0, 3.0]] * 4
    assert seen == [(True, 1, [4, 2])]
    assert not strategy.report().num_operations


def test_a_function_runs_in_parts(strategy: Strategy, parts: list[tuple[int, ...]]) -> None:
    traces = []

    @tf.function
    def step(x: tf.Tensor) -> Any:
        traces.append(x.shape)
        return tf.reduce_sum(tf.exp(x), 0), x

    for size in (8, 4, 8):
        x = tf.ones([size, 2])
        total, rows = strategy.run(step, args=(x,))
        np.testing.assert_allclose(total, [size * np.e] * 2, rtol=1e-6)
        assert rows.shape == [size, 2]
    strategy.set_shares([0, 1, 1])
    strategy.run(step, args=(x,))
    assert parts == [(4, 2, 2), (2, 1, 1), (4, 2, 2), (0, 4, 4)]
    assert [shape.as_list() for shape in traces] == [[None, 2]]
    assert strategy.report().num_operations > 0
    assert strategy.report().gathered == ()


def test_shares_change_in_a_graph_that_was_traced(strategy: Strategy) -> None:
    traces = []

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        traces.append(1)
        return strategy.run(lambda batch: tf.reduce_sum(tf.square(batch)), args=(x,))

    for shares in ([2, 1, 1], [0, 0, 1], [1, 0, 0]):
        strategy.set_shares(shares)
        assert float(step(tf.fill([6, 2], 2.0))) == 48.0
    assert len(traces) == 1


def test_a_run_inside_of_a_function_is_partitioned(strategy: Strategy) -> None:
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, weight)))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    @tf.function
    def several(x: tf.Tensor) -> tf.Tensor:
        losses = tf.TensorArray(tf.float32, 3)
        for k in tf.range(3):
            losses = losses.write(k, strategy.run(step, args=(x,)))
        return losses.stack()

    x = tf.random.stateless_normal([7, 2], [1, 2])
    given, ours = several(x), weight.numpy()
    weight.assign([1.0, 2.0])
    np.testing.assert_allclose(given, [float(step(x)) for _ in range(3)], rtol=1e-5)
    np.testing.assert_allclose(ours, weight, rtol=1e-5)
    assert strategy.report().num_operations > 0


def test_one_device_needs_no_partition() -> None:
    alone = Strategy(Plan.data_parallel(["cpu:1"]))
    step = tf.function(lambda x: x * 2.0)
    assert float(alone.run(step, args=(tf.constant(3.0),))) == 6.0
    assert alone.report().num_operations == 0


def test_a_run_in_what_xla_compiles_is_refused(strategy: Strategy) -> None:
    step = tf.function(
        lambda x: strategy.run(lambda value: tf.exp(value), args=(x,)), jit_compile=True
    )
    with pytest.raises(EngineError, match="ENG-084"):
        step(tf.zeros([4, 2]))


@pytest.mark.parametrize("jit_compile", [True, False])
def test_a_model_that_asks_for_xla_is_compiled_in_parts(
    strategy: Strategy, jit_compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = recorded(monkeypatch)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(64), layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=jit_compile)
    x, y = np.ones((8, 4), "f4"), np.ones((8, 1), "f4")
    for run, data in ((model.fit, (x, y)), (model.evaluate, (x, y)), (model.predict, (x,))):
        compiled.clear()
        run(*data, verbose=0)
        assert any(compiled) == jit_compile
    assert model.jit_compile == jit_compile
    assert strategy.report().num_operations > 0


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_values_of_the_one_replica_are_whole(strategy: Strategy, op: str) -> None:
    value = tf.constant([[1.0, 2.0], [3.0, 6.0]])
    reduced = strategy.reduce(op, value, axis=None)
    assert reduced.numpy().tolist() == value.numpy().tolist()
    along = strategy.reduce(op, value, axis=0)
    assert along.numpy().tolist() == ([4.0, 8.0] if op == "SUM" else [2.0, 4.0])
    assert strategy.gather(value, axis=0).numpy().tolist() == value.numpy().tolist()
    assert strategy.experimental_local_results(value) == (value,)
    pair = {"a": value, "b": (value,)}
    assert strategy.experimental_local_results(pair) == (pair,)


def test_replica_contexts_reduce_and_merge(strategy: Strategy) -> None:
    def step(x: tf.Tensor) -> Any:
        context = tf.distribute.get_replica_context()
        merged = context.merge_call(
            lambda extended_of, value: extended_of.extended.reduce_to("SUM", value, value), (x,)
        )
        return context.all_reduce("SUM", x), context.all_gather(x, 0), merged

    for call in (step, tf.function(step)):
        results = strategy.run(call, args=(tf.constant([1.0, 2.0]),))
        assert [result.numpy().tolist() for result in results] == [[1.0, 2.0]] * 3


def test_datasets_give_global_batches(strategy: Strategy) -> None:
    data = tf.data.Dataset.range(10).batch(4)
    distributed = strategy.experimental_distribute_dataset(data)
    assert next(iter(distributed)).numpy().tolist() == [0, 1, 2, 3]
    contexts = []

    def made(context: tf.distribute.InputContext) -> tf.data.Dataset:
        contexts.append(context)
        return data.batch(context.get_per_replica_batch_size(1))

    assert len(list(strategy.distribute_datasets_from_function(made))) == 3
    (context,) = contexts
    assert (context.num_input_pipelines, context.num_replicas_in_sync) == (1, 1)
    assert context.get_per_replica_batch_size(64) == 64
    value = strategy.experimental_distribute_values_from_function(
        lambda context: (context.replica_id_in_sync_group, context.num_replicas_in_sync)
    )
    assert value == (0, 1)


def test_variables_made_in_the_scope_have_owners(strategy: Strategy) -> None:
    with strategy.scope():
        kernels = [tf.Variable(tf.ones([64, 64])) for _ in range(3)]
        small = tf.Variable(0, trainable=False)
    owners = [device_name(kernel.device) for kernel in kernels]
    assert sorted(owners) == DEVICES
    assert device_name(small.device) == "cpu:0"
    assert all(strategy.owner_registry.holds(variable) for variable in (*kernels, small))
    outside = tf.Variable(1.0)
    assert not strategy.owner_registry.holds(outside)
    for kernel in kernels:
        with strategy.scope(), strategy.extended.colocate_vars_with(kernel):
            slot = tf.Variable(tf.zeros([64, 64]))
        assert slot.device == kernel.device
    with strategy.scope(), strategy.extended.colocate_vars_with(outside):
        slot = tf.Variable(tf.zeros([64, 64]))
    assert slot.device == outside.device


def test_an_update_is_one_call(strategy: Strategy) -> None:
    with strategy.scope():
        variable = tf.Variable(tf.ones([64, 64]))
    calls = []

    def update(target: tf.Variable, delta: tf.Tensor) -> Any:
        calls.append(target)
        return target.assign_add(delta)

    with strategy.scope():
        strategy.extended.update(variable, update, args=(tf.ones([64, 64]),))
    assert len(calls) == 1 and calls[0] is variable
    assert float(variable[0, 0]) == 2.0
    assert float(strategy.extended.read_var(variable)[0, 0]) == 2.0


def compiled(**options: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    parts = [layers.Dense(8, activation="tanh"), layers.BatchNormalization(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *parts])
    model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse", metrics=["mae"], **options)
    return model


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}], ids=["one", "two"])
def test_keras_trains_as_on_one_device(strategy: Strategy, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(22, 6)).astype("float32"), rng.normal(size=(22, 3)).astype("float32")
    reference = compiled(**options)
    with strategy.scope():
        ours = compiled(**options)
    # The last batch has 6 samples.
    histories = [
        trained.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        for trained in (ours, reference)
    ]
    assert histories[0].keys() == histories[1].keys()
    for name in histories[0]:
        np.testing.assert_allclose(histories[0][name], histories[1][name], rtol=1e-5)
    for variable, other in zip(ours.variables, reference.variables, strict=True):
        np.testing.assert_allclose(variable, other, rtol=1e-4, atol=1e-6, err_msg=variable.path)
    evaluated = [trained.evaluate(x, y, batch_size=8, verbose=0) for trained in (ours, reference)]
    np.testing.assert_allclose(*evaluated, rtol=1e-5)
    predicted = [trained.predict(x, batch_size=8, verbose=0) for trained in (ours, reference)]
    np.testing.assert_allclose(*predicted, rtol=1e-4, atol=1e-6)
    assert strategy.report().num_operations > 0


def test_a_run_inside_of_a_run_is_a_call(strategy: Strategy) -> None:
    @tf.function
    def step(x: tf.Tensor) -> Any:
        doubled = strategy.run(lambda value: 2.0 * value, args=(x,))
        total = strategy.reduce("SUM", doubled, axis=0)
        whole = strategy.gather(strategy.reduce("MEAN", doubled, axis=None), axis=0)
        return total, strategy.reduce(tf.distribute.ReduceOp.MEAN, doubled, axis=0), whole

    x = tf.random.stateless_normal([7, 2], [1, 2])
    total, mean, whole = strategy.run(step, args=(x,))
    np.testing.assert_allclose(total, 2.0 * tf.reduce_sum(x, 0), rtol=1e-5)
    np.testing.assert_allclose(mean, 2.0 * tf.reduce_mean(x, 0), rtol=1e-5)
    np.testing.assert_allclose(whole, 2.0 * x, rtol=1e-6)


def test_a_multiplied_batch_size_is_told_of_once(strategy: Strategy) -> None:
    with pytest.warns(EvenerWarning, match="ENG-083") as caught:
        sizes = [64 * strategy.num_replicas_in_sync for batch_size in range(2)]
    assert sizes == [64, 64]
    assert len(caught) == 1
    assert "multiply by 3" in str(caught[0].message)
    count = 2 * strategy.num_replicas_in_sync
    assert count == 2


def test_functions_run_eagerly_where_that_is_asked_for(strategy: Strategy) -> None:
    seen = []

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        seen.append(float(tf.reduce_sum(x)))
        return x

    tf.config.run_functions_eagerly(True)
    try:
        with pytest.warns(EvenerWarning, match="ENG-086"):
            strategy.run(step, args=(tf.ones([4, 2]),))
    finally:
        tf.config.run_functions_eagerly(False)
    assert seen == [8.0]


def test_a_deep_copy_of_what_holds_a_strategy_uses_the_same_one(strategy: Strategy) -> None:
    """It cannot be pickled: its plan is text."""
    assert copy.deepcopy({"strategy": strategy})["strategy"] is strategy
    with pytest.raises(EngineError, match="ENG-090"):
        pickle.dumps(strategy)


@pytest.mark.parametrize("kind", [KeyError, IndexError])
def test_errors_of_a_program_are_those_of_one_device(
    strategy: Strategy, kind: type[Exception]
) -> None:
    class Fails(keras.Model):
        def train_step(self, data: object) -> dict[str, object]:
            raise kind

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        raise kind

    with pytest.raises(Exception) as expected:
        step(tf.ones([4]))
    with pytest.raises(Exception) as found:
        strategy.run(step, args=(tf.ones([4]),))
    assert type(found.value) is type(expected.value)
    with strategy.scope():
        model = Fails()
        model.compile("sgd")
    with pytest.raises(Exception) as found:
        model.fit(np.ones([4, 2]), verbose=0)
    assert type(found.value) is kind
