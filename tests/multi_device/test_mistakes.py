"""Every mistake gets an error in the house form, early, and leaves the weights as they were.

What is no mistake on one device is none under a strategy of one replica.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from evener import EngineError, EvenerError, Plan, PlanError, Strategy
from evener.plan import PlanDevice, Replica, Stage
from exactness.compare import assert_equal, state_of
from exactness.models import sequential

TWO = ("cpu:0", "cpu:1")


def one_replica(devices: Sequence[str] = TWO) -> Strategy:
    return Strategy(devices=devices, shares="even")


def in_micro_batches(devices: Sequence[str] = TWO) -> Strategy:
    plan = Plan.data_parallel(list(devices))
    replicas = [dataclasses.replace(replica, num_micro_batches=2) for replica in plan.replicas]
    return Strategy(dataclasses.replace(plan, replicas=tuple(replicas)))


def small() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(5), layers.Dense(1, name="head")])


def compiled_under(strategy: Strategy, build: Callable[[], keras.Model] = small) -> keras.Model:
    with strategy.scope():
        model = build()
        model.compile("adam", "mse", metrics=["mae"])
    return model


def plain_like(
    model: keras.Model,
    build: Callable[[], keras.Model] = small,
    optimizer: str | keras.optimizers.Optimizer = "adam",
) -> keras.Model:
    """Build and compile without a strategy, with the weights of another model."""
    reference = build()
    reference.compile(optimizer, "mse", metrics=["mae"])
    reference.set_weights(model.get_weights())
    return reference


def acts_as_plain_keras(
    model: keras.Model, reference: keras.Model, act: Callable[[keras.Model], object]
) -> None:
    """Do the same with both; what it returns, weights and steps must agree."""
    ours, plain = ({"result": act(trained), **state_of(trained)} for trained in (model, reference))
    assert_equal(plain, ours, within=1e-5, where="two devices")


def data(num_samples: int = 16) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(num_samples, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def assert_house_form(error: EvenerError, code: str, *names: str) -> None:
    """Check the code, the three lines, and that the text names what it is about."""
    text = str(error)
    assert error.code.startswith(code), text
    assert text.startswith(f"[{error.code}] ")
    assert "\nWhy: " in text
    assert "\nFix: " in text
    for name in names:
        assert name in text, f"{name!r} is not named in:\n{text}"


def refused(model: keras.Model, act: Callable[[], object], code: str, *names: str) -> EvenerError:
    """Check that an act is refused, and that it changed neither weights nor steps."""
    before = model.get_weights()
    steps = int(model.optimizer.iterations.numpy()) if model.optimizer else 0
    with pytest.raises(EvenerError) as caught:
        act()
    assert_house_form(caught.value, code, *names)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert steps == (int(model.optimizer.iterations.numpy()) if model.optimizer else 0)
    return caught.value


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        (["cpu:0", "gpu:7"], "gpu:7"),
        (["cpu:0", "cpu:31"], "cpu:31"),
        (["cpu:0", "tpu:0"], "tpu:0"),
        (["cpu:0", "GPU:0"], "GPU:0"),
        (["cpu:0", "cpu:0"], "cpu:0"),
        ([], "empty"),
        ("gpu:0,", "gpu:0,"),
        ("cpu:zero", "cpu:zero"),
    ],
)
def test_unknown_device(devices: str | list[str], named: str) -> None:
    with pytest.raises(EvenerError) as caught:
        Strategy(devices=devices)
    assert_house_form(caught.value, "DEV-", named)


@pytest.mark.parametrize(
    ("shares", "code", "names"),
    [
        ([1, -1], "PLAN-007", ["-1", "negative"]),
        ([0, 0], "PLAN-009", ["0"]),
        ([0.0, 0.0], "PLAN-009", ["0"]),
        ([1, float("nan")], "PLAN-008", ["nan"]),
        ([1, float("inf")], "PLAN-008", ["inf"]),
        ([3, 2, 1], "PLAN-010", ["3", "2"]),
        ([1], "PLAN-011", ["1", "2"]),
        ([], "PLAN-", []),
        ("uneven", "PLAN-050", ["uneven"]),
    ],
)
def test_shares_that_cannot_be(shares: str | list[float], code: str, names: list[str]) -> None:
    """Shares are refused before a strategy exists, and when they are changed."""
    with pytest.raises(PlanError) as caught:
        Strategy(devices=TWO, shares=shares)
    assert_house_form(caught.value, code, *names)
    if isinstance(shares, str):
        return
    strategy = Strategy(devices=TWO, shares=[3, 1])
    with pytest.raises(PlanError) as caught:
        strategy.set_shares(shares)
    assert_house_form(caught.value, code, *names)
    assert strategy.shares == (0.75, 0.25)


def test_bad_shares_between_steps_leave_the_training_whole() -> None:
    """A refused change of shares changes nothing: the training goes on."""
    strategy = Strategy(devices=TWO, shares=[3, 1])
    model = compiled_under(strategy)
    model.train_on_batch(*data())
    refused(model, lambda: strategy.set_shares([1, -1]), "PLAN-007", "-1")
    model.train_on_batch(*data())
    assert int(model.optimizer.iterations.numpy()) == 2


def test_a_plan_for_other_devices() -> None:
    plan = Plan.data_parallel(["cpu:0", "gpu:3"])
    with pytest.raises(EvenerError) as caught:
        Strategy(plan)
    assert_house_form(caught.value, "PLAN-029", "gpu:3")


def test_a_plan_and_shares() -> None:
    with pytest.raises(PlanError) as caught:
        Strategy(Plan.data_parallel(TWO), shares=[1, 1])
    assert_house_form(caught.value, "PLAN-051", "shares")


def test_a_variable_without_owner() -> None:
    """Owners by pattern that leave a variable out: the variable and the patterns are named."""
    strategy = Strategy(devices=TWO, owners={"*/dense/*": "cpu:1"})
    with pytest.raises(EngineError) as caught:
        compiled_under(strategy)
    assert_house_form(caught.value, "ENG-010", "head/kernel", "*/dense/*")


def test_owners_on_an_unknown_device() -> None:
    with pytest.raises(PlanError) as caught:
        Strategy(devices=TWO, owners={"*": "cpu:4"})
    assert_house_form(caught.value, "PLAN-", "cpu:4")


ACTS: dict[str, Callable[[keras.Model], object]] = {
    "fit": lambda model: model.fit(*data(), batch_size=8, shuffle=False, verbose=0).history,
    "evaluate": lambda model: model.evaluate(*data(), verbose=0),
    "predict": lambda model: model.predict(data()[0], verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(*data()),
}


@pytest.mark.covering(1)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("compiled_inside", [True, False])
def test_a_model_made_outside_the_scope(act: str, compiled_inside: bool) -> None:
    """Made without a strategy, used under one: it trains on all devices."""
    model = small()
    strategy = one_replica()
    with strategy.scope() if compiled_inside else contextlib.nullcontext():
        model.compile("adam", "mse", metrics=["mae"])
    reference = plain_like(model)

    def use(used: keras.Model) -> object:
        with strategy.scope() if used is model else contextlib.nullcontext():
            return ACTS[act](used)

    acts_as_plain_keras(model, reference, use)
    assert strategy.report().num_operations > 0


@pytest.mark.covering(1)
@pytest.mark.sampled(20)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("second", [one_replica, in_micro_batches])
@pytest.mark.parametrize("first", [one_replica, in_micro_batches])
def test_a_model_moved_between_strategies(
    first: Callable[[], Strategy], second: Callable[[Sequence[str]], Strategy], act: str
) -> None:
    """Made under one strategy, used in the scope of another."""
    model = compiled_under(first())
    other = second(("cpu:2", "cpu:3"))

    def use() -> object:
        with other.scope():
            return ACTS[act](model)

    refused(model, use, "ENG-085")


def with_a_layer_made_outside() -> Callable[[], keras.Model]:
    outside = layers.Dense(4, name="outside")
    outside.build((None, 4))
    return lambda: keras.Sequential([keras.Input((4,)), outside, layers.Dense(1)])


@pytest.mark.covering(1)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("make", [one_replica, in_micro_batches])
def test_a_layer_made_outside_the_scope(make: Callable[[], Strategy], act: str) -> None:
    """One layer of the model was made before the scope: all devices compute it."""
    strategy = make()
    model = compiled_under(strategy, with_a_layer_made_outside())
    acts_as_plain_keras(model, plain_like(model, with_a_layer_made_outside()), ACTS[act])
    assert strategy.report().num_operations > 0


OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, epsilon=1e-3, ema_momentum=0.9, use_ema=True),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
}


@pytest.mark.covering(1)
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make", [one_replica, in_micro_batches])
def test_an_optimizer_made_outside_the_scope(make: Callable[[], Strategy], name: str) -> None:
    """It trains as on one device, and what it keeps is there."""
    strategy = make()
    optimizer = OPTIMIZERS[name]()
    with strategy.scope():
        model = small()
    model.compile(optimizer, "mse", metrics=["mae"])
    reference = plain_like(model, optimizer=OPTIMIZERS[name]())
    acts_as_plain_keras(model, reference, ACTS["fit"])
    assert int(optimizer.iterations.numpy()) == 2
    for ours, plain in zip(optimizer.variables, reference.optimizer.variables, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6, err_msg=ours.path)
    if make is one_replica:
        assert strategy.report().num_operations > 0


def test_a_second_layout_of_devices() -> None:
    """Five devices are laid out: seven cannot be had any more, and both are named."""
    model = compiled_under(Strategy(devices=TWO))
    refused(model, lambda: Strategy(devices="cpu:7"), "DEV-013", "cpu:7", "cpu:4")
    model.train_on_batch(*data())


WHEN = pytest.mark.parametrize("first", [True, False], ids=["first", "later"])


MAKE = pytest.mark.parametrize("make", [one_replica, in_micro_batches])


@pytest.mark.covering(2)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("act", ["train_on_batch", "test_on_batch"])
@WHEN
@MAKE
def test_a_batch_of_no_samples(make: Callable[[], Strategy], act: str, first: bool) -> None:
    """One device takes it, as the first batch and after good ones; so do several."""
    strategy = make()
    model = compiled_under(strategy)
    reference = plain_like(model)
    x, y = data()
    if not first:
        acts_as_plain_keras(model, reference, lambda trained: trained.train_on_batch(x, y))
    acts_as_plain_keras(model, reference, lambda trained: getattr(trained, act)(x[:0], y[:0]))
    # Nothing is broken by it.
    acts_as_plain_keras(model, reference, lambda trained: trained.train_on_batch(x, y))
    assert strategy.report().num_operations > 0


def good_then_empty() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    x, y = data()
    yield x, y
    yield x[:0], y[:0]


def as_dataset() -> tf.data.Dataset:
    """Return the same from tf.data, where the graph alone sees the size."""
    spec = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    return tf.data.Dataset.from_generator(good_then_empty, output_signature=spec)


SOURCES = pytest.mark.parametrize(
    "source", [good_then_empty, as_dataset], ids=["generator", "dataset"]
)


def fit(model: keras.Model, batches: Iterable[object]) -> dict[str, list[float]]:
    return model.fit(batches, steps_per_epoch=2, shuffle=False, verbose=0).history


@pytest.mark.covering(1)
@pytest.mark.sampled(12)
@SOURCES
@MAKE
def test_a_source_that_yields_no_samples(
    make: Callable[[], Strategy], source: Callable[[], Iterable[object]]
) -> None:
    """The empty batch comes after a good one, and is a step as on one device."""
    model = compiled_under(make())
    acts_as_plain_keras(model, plain_like(model), lambda trained: fit(trained, source()))
    assert int(model.optimizer.iterations.numpy()) == 2


# What it is, and what Keras says of it.
NO_TENSORS = {
    "array of objects": (np.array([object()] * 4, dtype=object), "Invalid"),
    "object": (object(), "object"),
    "list with text": ([[1.0, 2.0], "text"], "'float'"),
    "nothing": (None, "not optional"),
}


def train_on_no_tensor(model: keras.Model, x: object) -> None:
    model.train_on_batch(x, None if x is None else data(4)[1])


@pytest.mark.covering(2)
@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", NO_TENSORS)
@WHEN
@MAKE
def test_data_that_is_no_tensor(make: Callable[[], Strategy], name: str, first: bool) -> None:
    """Keras raises what it raises without a strategy."""
    x, named = NO_TENSORS[name]
    raised = []
    ours = compiled_under(make())
    for model in (ours, plain_like(ours)):
        if not first:
            model.train_on_batch(*data())
        before = model.get_weights()
        with pytest.raises(Exception, match=named) as caught:
            train_on_no_tensor(model, x)
        raised.append(caught.type)
        assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
        assert int(model.optimizer.iterations.numpy()) == (0 if first else 1)
    assert raised[0] is raised[1]


@MAKE
def test_rows_of_different_numbers(make: Callable[[], Strategy]) -> None:
    """More inputs than targets: no sample may be trained on the target of another."""
    model = compiled_under(make())
    before = model.get_weights()
    with pytest.raises(Exception, match=r"(?i)size|shape|samples|incompatible|cardinality|equal"):
        model.train_on_batch(data(16)[0], data(12)[1])
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


class Breaks(layers.Layer):
    """Takes the root of its first input, which may be negative."""

    def call(self, x: object) -> object:
        return x * ops.sqrt(x[:, :1])


def breaking() -> keras.Model:
    """A model of which one layer can give NaN."""
    return sequential((4,), layers.Identity(), Breaks(name="breaks"), layers.Dense(1))


@pytest.mark.covering(1)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("sample", [2, 13])
@MAKE
def test_a_loss_that_is_nan(make: Callable[[], Strategy], sample: int) -> None:
    """NaN of one device's samples is that of one device, and nothing is said."""
    model = compiled_under(make(), breaking)
    reference = plain_like(model, breaking)
    x, y = data()
    x = np.abs(x) + 0.1
    acts_as_plain_keras(model, reference, lambda trained: trained.train_on_batch(x, y))
    x[sample, 0] = -1.0
    acts_as_plain_keras(model, reference, lambda trained: trained.train_on_batch(x, y))
    assert all(np.isnan(weight).all() for weight in model.get_weights())


def plan(
    *stages: Sequence[str],
    num_micro_batches: int = 1,
    in_flight: int = 1,
    recompute: Sequence[str] = (),
) -> Plan:
    replica = Replica(
        share=1,
        num_micro_batches=num_micro_batches,
        in_flight=in_flight,
        stages=tuple(
            Stage(device=TWO[k % 2], layers=tuple(names)) for k, names in enumerate(stages)
        ),
    )
    return Plan(
        devices=tuple(map(PlanDevice.named, TWO)), replicas=(replica,), recompute=tuple(recompute)
    )


def chain() -> keras.Model:
    return sequential(
        (4,),
        layers.Dense(6, name="first"),
        layers.Reshape((3, 2), name="shape"),
        layers.LSTM(3, name="memory"),
        layers.Dense(1, name="last"),
    )


def compiled(given: Plan, build: Callable[[], keras.Model] = chain) -> keras.Model:
    with Strategy(given).scope():
        model = build()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize(
    ("given", "code", "names"),
    [
        (plan(["first", "m*"], ["shape", "mem*", "last"]), "ENG-041", ["memory", "m*", "mem*"]),
        (plan(["first", "shape"], ["memori", "last"]), "ENG-042", ["memori", "/memory/"]),
        (plan(["first", "memory"], ["shape", "lst"]), "ENG-042", ["'lst'", "/last'"]),
        (plan(["*"], recompute=["firsts"]), "ENG-042", ["firsts", "/first'", "recompute"]),
    ],
)
def test_a_plan_that_does_not_fit_the_model(given: Plan, code: str, names: list[str]) -> None:
    model = compiled(given)
    refused(model, lambda: model.fit(*data(), verbose=0), code, *names)
    refused(model, lambda: model.evaluate(*data(), verbose=0), code, *names)
    refused(model, lambda: model.predict(data()[0], verbose=0), code, *names)


def test_a_pattern_for_another_program_is_fine_with_every_optimizer() -> None:
    """Slots, such as those of Adam, belong to no layer that a stage is missing for."""
    with Strategy(plan(["first", "shape"], ["memory", "last", "other"])).scope():
        model = chain()
        model.compile("adam", "mse")
    assert np.isfinite(model.train_on_batch(*data()))


@pytest.mark.long
@pytest.mark.parametrize(
    "given",
    [
        plan(["first", "shape"], ["last"], num_micro_batches=2),  # no stage for a layer
        plan(["first"], ["shap", "memory", "last"]),  # only a layer without weights is left out
        plan(["first", "memory"], ["shape", "last"], num_micro_batches=2),  # out of line
        plan(["last"], ["first", "shape", "memory"], num_micro_batches=2),  # backwards
        plan(["first", "shape", "memory"], ["memory/*", "last"]),  # through a layer
        plan(["first", "shape"], ["memory", "last"], num_micro_batches=9),  # more than samples
    ],
    ids=["in no stage", "a reshape alone", "out of line", "backwards", "through", "many"],
)
def test_stages_that_are_unwise_and_not_wrong(given: Plan) -> None:
    """They say where and when something is computed, and never what."""
    model = compiled(given)
    reference = plain_like(model, chain, keras.optimizers.SGD(0.1))

    def act(trained: keras.Model) -> object:
        history = trained.fit(*data(14), batch_size=7, shuffle=False, verbose=0).history
        return history["loss"], trained.evaluate(*data(3), verbose=0, return_dict=True)["loss"]

    acts_as_plain_keras(model, reference, act)
    predicted = model.predict(data(3)[0], verbose=0)
    np.testing.assert_allclose(predicted, reference.predict(data(3)[0], verbose=0), rtol=1e-4)


def test_an_error_of_a_step_leaves_the_model_usable() -> None:
    model = compiled(plan(["first", "shape"], ["memory", "last"], num_micro_batches=2))
    before = model.get_weights()
    with pytest.raises(Exception, match=r"(?i)shape|size|samples|incompatible|equal"):
        model.train_on_batch(data(16)[0], data(12)[1])
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert np.isfinite(model.train_on_batch(*data()))
    assert not np.array_equal(before[0], model.get_weights()[0])


@pytest.mark.parametrize("aggregation", ["NONE", "SUM", "MEAN"])
@MAKE
def test_places_that_one_replica_overwrites(make: Callable[[], Strategy], aggregation: str) -> None:
    strategy = make()
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation[aggregation])

    def overwrite(rows: tf.Tensor) -> None:
        variable.scatter_update(tf.IndexedSlices([tf.reduce_sum(rows)], [0]))

    strategy.run(tf.function(overwrite), args=(tf.ones([5]),))
    np.testing.assert_array_equal(variable, [5.0, 2.0])
    assert strategy.report().num_operations > 0


def masked_step(strategy: Strategy) -> tuple[keras.Model, keras.losses.Loss, Callable[..., Any]]:
    """Return a masked model, its loss, and a step with the loss in a function of its own."""
    with strategy.scope():
        model = sequential((3,), layers.Embedding(5, 2, mask_zero=True), layers.Dense(1))
    loss_of = keras.losses.MeanSquaredError()

    @tf.function
    def inside(x: tf.Tensor) -> tf.Tensor:
        return loss_of(tf.zeros([tf.shape(x)[0], 3, 1]), model(x))

    step = tf.function(lambda x: strategy.run(lambda part: inside(part), args=(x,)))
    return model, loss_of, step


SENTENCES = np.array([[1, 2, 0], [3, 0, 0]])


def sentences(strategy: Strategy) -> Any:
    dataset = tf.data.Dataset.from_tensor_slices(SENTENCES).batch(2)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    return batch


@MAKE
def test_a_masked_loss_in_a_function_inside_the_one_replica(make: Callable[[], Strategy]) -> None:
    strategy = make()
    model, loss_of, step = masked_step(strategy)
    # Three words of six count: a mean of the devices' means would be another number.
    plain = loss_of(tf.zeros([2, 3, 1]), model(SENTENCES))
    np.testing.assert_allclose(step(sentences(strategy)), plain, rtol=1e-5)
    assert strategy.report().num_operations > 0


@MAKE
def test_one_pipeline_per_replica_of_a_dataset(make: Callable[[], Strategy]) -> None:
    mode = tf.distribute.InputReplicationMode.PER_REPLICA
    options = tf.distribute.InputOptions(experimental_replication_mode=mode)
    dataset = tf.data.Dataset.range(8).batch(4)
    whole = make().experimental_distribute_dataset(dataset, options)
    assert [batch.numpy().tolist() for batch in whole] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    "options",
    [
        {"aggregation": tf.VariableAggregation.MEAN},
        {"synchronization": tf.VariableSynchronization.NONE},
    ],
    ids=["mean", "none"],
)
@MAKE
def test_whole_numbers_that_one_replica_keeps(
    make: Callable[[], Strategy], options: dict[str, Any]
) -> None:
    strategy = make()
    with strategy.scope():
        seen = tf.Variable(1, **options)

    def count(rows: tf.Tensor) -> tf.Tensor:
        return seen.assign_add(tf.reduce_sum(rows))

    assert int(strategy.run(tf.function(count), args=(tf.ones([5], tf.int32),))) == 6
    assert int(seen) == 6
