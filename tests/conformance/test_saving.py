"""Checkpoints and exported models, written under one strategy, read under others; summaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from .strategies import Wrap, make, replica_float

PLACES = ("plain", "mirrored-2", "evener-1", "evener-2", "evener-3")


PAIRS = [
    ("plain", "evener-2"),
    ("evener-2", "plain"),
    ("mirrored-2", "evener-3"),
    ("evener-3", "mirrored-2"),
    ("evener-1", "evener-2"),
    ("evener-3", "evener-2"),
]


SUM = tf.VariableAggregation.SUM


ON_READ = tf.VariableSynchronization.ON_READ


class State(tf.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.w = tf.Variable([value, value + 1.0])
        self.mean = tf.Variable(value, aggregation=tf.VariableAggregation.MEAN)
        self.step = tf.Variable(
            int(value), dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        self.total = tf.Variable(0.0, synchronization=ON_READ, aggregation=SUM)


def placed(name: str, make_it: Any) -> tuple[Any, Any]:
    if name == "plain":
        return tf.distribute.get_strategy(), make_it()
    strategy = make(name)
    with strategy.scope():
        return strategy, make_it()


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_checkpoints(tmp_path: Path, before: str, after: str) -> None:
    strategy, state = placed(before, lambda: State(3.0))
    for _ in range(2):
        strategy.run(lambda: state.total.assign_add(tf.constant(4.0)))
    total = 8.0 * strategy.num_replicas_in_sync
    path = tf.train.Checkpoint(state=state).save(str(tmp_path / "ckpt"))
    strategy, restored = placed(after, lambda: State(0.0))
    tf.train.Checkpoint(state=restored).restore(path).assert_consumed()
    np.testing.assert_array_equal(restored.w, [3.0, 4.0])
    assert restored.mean.numpy() == 3.0
    assert restored.step.numpy() == 3
    assert restored.total.read_value().numpy() == total
    strategy.run(lambda: restored.total.assign_add(tf.constant(1.0)))
    assert restored.total.read_value().numpy() == total + strategy.num_replicas_in_sync


@pytest.mark.parametrize("after", PLACES)
def test_restoring_before_variables_are_made(tmp_path: Path, after: str) -> None:
    _, state = placed("evener-2", lambda: State(3.0))
    path = tf.train.Checkpoint(state=state).save(str(tmp_path / "ckpt"))

    class Later(tf.Module):
        def build(self) -> None:
            self.w = tf.Variable([0.0, 0.0])

    strategy, later = placed(after, Later)
    status = tf.train.Checkpoint(state=later).restore(path)
    with strategy.scope():
        later.build()
    np.testing.assert_array_equal(later.w, [3.0, 4.0])
    status.expect_partial()


def test_restoring_inside_the_scope(tmp_path: Path, strategy: Any) -> None:
    with strategy.scope():
        state = State(3.0)
        path = tf.train.Checkpoint(state=state).save(str(tmp_path / "ckpt"))
        other = State(0.0)
        tf.train.Checkpoint(state=other).restore(path).assert_consumed()
    np.testing.assert_array_equal(other.w, [3.0, 4.0])


def test_the_checkpoint_manager(tmp_path: Path, strategy: Any) -> None:
    with strategy.scope():
        state = State(1.0)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(state=state), str(tmp_path), max_to_keep=2
    )
    for value in (5.0, 6.0, 7.0):
        strategy.run(lambda value=value: state.mean.assign(tf.constant(value)))
        manager.save()
    assert len(manager.checkpoints) == 2
    state.mean.assign(0.0)
    manager.restore_or_initialize()
    assert state.mean.numpy() == 7.0


def test_values_after_a_restore_are_seen_in_replicas(tmp_path: Path, strategy: Any) -> None:
    """Also by functions that were traced before."""
    with strategy.scope():
        state = State(1.0)
    path = tf.train.Checkpoint(state=state).save(str(tmp_path / "ckpt"))

    @tf.function
    def read() -> Any:
        result = strategy.run(lambda: tf.reduce_sum(state.w) + replica_float())
        return strategy.reduce("SUM", result, axis=None)

    assert read().numpy() == 3.0
    state.w.assign([0.0, 0.0])
    assert read().numpy() == 0.0
    tf.train.Checkpoint(state=state).restore(path)
    assert read().numpy() == 3.0


class Affine(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([[2.0], [3.0]])
        self.calls = tf.Variable(0.0, synchronization=ON_READ, aggregation=SUM, trainable=False)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32)])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, self.w)


X = np.array([[1.0, 1.0], [2.0, 0.0]], "float32")


@pytest.mark.parametrize("in_scope", [True, False])
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_saved_models(tmp_path: Path, before: str, after: str, in_scope: bool) -> None:
    strategy, module = placed(before, Affine)
    if in_scope and before != "plain":
        with strategy.scope():
            tf.saved_model.save(module, str(tmp_path))
    else:
        tf.saved_model.save(module, str(tmp_path))
    strategy, loaded = placed(after, lambda: tf.saved_model.load(str(tmp_path)))
    np.testing.assert_array_equal(loaded(X), [[5.0], [4.0]])
    assert len(loaded.trainable_variables if hasattr(loaded, "trainable_variables") else [1]) == 1
    loaded.w.assign([[1.0], [1.0]])
    np.testing.assert_array_equal(loaded(X), [[2.0], [2.0]])
    result = strategy.run(lambda: loaded(X))
    for part in strategy.experimental_local_results(result):
        np.testing.assert_array_equal(part, [[2.0], [2.0]])


def test_a_loaded_model_trains(tmp_path: Path, strategy: Any, call: Wrap) -> None:
    _, module = placed("plain", Affine)
    tf.saved_model.save(module, str(tmp_path))
    with strategy.scope():
        loaded = tf.saved_model.load(str(tmp_path))
        optimizer = keras.optimizers.SGD(0.1)

    def fn() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loaded(X[:1])) / strategy.num_replicas_in_sync
        optimizer.apply_gradients([(tape.gradient(loss, loaded.w), loaded.w)])

    with strategy.scope():
        optimizer.build([loaded.w])
    call(lambda: strategy.run(fn))()
    np.testing.assert_allclose(loaded.w, [[1.9], [2.9]], rtol=1e-6)


def small() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(3, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


Y = np.array([[1.0], [0.0]], "float32")


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("evener-2", "plain", "file.keras"),
        ("plain", "evener-3", "file.weights.h5"),
        ("evener-2", "mirrored-2", "file.weights.h5"),
        ("evener-2", "evener-3", "file.keras"),
    ],
)
def test_keras_models(tmp_path: Path, before: str, after: str, kind: str) -> None:
    _, model = placed(before, small)
    model.fit(X, Y, batch_size=2, verbose=0)
    path = str(tmp_path / kind)

    def load() -> keras.Model:
        if "weights" in kind:
            loaded = small()
            loaded.optimizer.build(loaded.trainable_variables)
            loaded.load_weights(path)
            return loaded
        return keras.saving.load_model(path)

    if "weights" in kind:
        model.save_weights(path)
    else:
        model.save(path)
    _, loaded = placed(after, load)
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)
    assert int(loaded.optimizer.iterations.numpy()) == 1
    loaded.fit(X, Y, batch_size=2, verbose=0)


def test_exported_keras_models(tmp_path: Path, strategy: Any) -> None:
    with strategy.scope():
        model = small()
    expected = model(X)
    model.export(str(tmp_path), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(loaded.serve(X), expected, rtol=1e-6)


def test_keras_models_as_saved_models(tmp_path: Path, strategy: Any) -> None:
    with strategy.scope():
        model = small()
    expected = model(X)
    tf.saved_model.save(model, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    signature = loaded.signatures["serving_default"]
    (result,) = signature(tf.constant(X)).values()
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize(("before", "after"), [("evener-2", "plain"), ("plain", "evener-3")])
def test_checkpoints_of_keras_models(tmp_path: Path, before: str, after: str) -> None:
    _, model = placed(before, small)
    model.fit(X, Y, batch_size=2, verbose=0)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "c"))

    def other() -> keras.Model:
        made = small()
        made.optimizer.build(made.trainable_variables)
        return made

    _, loaded = placed(after, other)
    tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer).restore(path).expect_partial()
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)
    for expected, actual in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(expected.numpy(), actual.numpy())


def written(folder: Path) -> list[tuple[str, float, int]]:
    found = []
    for path in sorted(folder.glob("*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                number = tf.make_ndarray(value.tensor)
                found.append((value.tag, float(number), event.step))
    return found


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_scalars_are_written_once(tmp_path: Path, strategy: Any, call: Wrap, where: str) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))

    def fn() -> None:
        if where == "outside":
            tf.summary.scalar("number", replica_float() + 5.0, step=3)
            return
        with writer.as_default():
            tf.summary.scalar("number", replica_float() + 5.0, step=3)

    with writer.as_default():
        call(lambda: strategy.run(fn))()
    writer.close()
    assert written(tmp_path) == [("number", 5.0, 3)]


def test_steps_and_conditions(tmp_path: Path, strategy: Any) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    with strategy.scope():
        step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    @tf.function
    def train() -> None:
        def fn() -> None:
            with tf.summary.record_if(lambda: tf.equal(step % 2, 0)):
                tf.summary.scalar("number", replica_float(), step=step)

        strategy.run(fn)
        step.assign_add(1)

    with writer.as_default():
        for _ in range(3):
            train()
    writer.close()
    assert [(tag, at) for tag, _, at in written(tmp_path)] == [("number", 0), ("number", 2)]


def test_outside_of_replicas(tmp_path: Path, strategy: Any) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default(), strategy.scope():
        tf.summary.scalar(
            "number", strategy.reduce("SUM", strategy.run(replica_float), axis=None), step=1
        )
    writer.close()
    assert written(tmp_path) == [("number", 0.0, 1)]
