"""Refusals of `evener run --checkpoint`: in the first step of a fit or before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener.errors import CheckpointError
from evener.run import replaying
from evener.run.resuming import Resumption, seed_of
from evener.run.script import Notes

X = np.ones((8, 2), "float32")
Y = np.ones((8, 1), "float32")
COUNT = [0]


@pytest.fixture(autouse=True)
def resumed(tmp_path: Path) -> Iterator[Resumption]:
    resumption = Resumption(str(tmp_path), 1, Notes())
    with resumption.resuming():
        yield resumption


def make_model(*layers: keras.layers.Layer) -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def fit(*callbacks: Any, model: keras.Model | None = None, **data: Any) -> None:
    data = data or {"x": X, "y": Y}
    (model or make_model()).fit(**data, batch_size=None, verbose=0, callbacks=[*callbacks])


def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    while True:
        yield X, Y


class Draws(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return tf.nn.dropout(x, 0.5)


class Counts(keras.Model):
    def __init__(self, count: tf.Variable) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        # Keras does not look into a function.
        self._count = lambda: count

    def call(self, x: Any) -> Any:
        self._count().assign_add(1.0)
        return self.dense(x)


class OwnGenerator(keras.utils.PyDataset):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return X, Y


class Keeps(keras.callbacks.Callback):
    total = 0

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.kept = kept
        self.seen = set[int]()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.kept == "attribute":
            self.seen.add(batch)
        elif self.kept == "class":
            Keeps.total += 1
        elif self.kept == "global":
            add()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.kept == "model":
            fit()


def add() -> None:
    COUNT[0] += 1


def fit_twice() -> None:
    batches = generate()
    for _ in range(2):
        fit(x=batches, steps_per_epoch=1, shuffle=False)


def fit_with_closure() -> None:
    losses: list[float] = []
    fit(keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: losses.append(logs["loss"])))


def fit_shared_shuffle() -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(8, seed=1).batch(4)
    fit(x=data.repeat(), steps_per_epoch=1, validation_data=data)


def fit_with_variable() -> None:
    count = tf.Variable(0.0, name="count")
    model = Counts(count)
    model.compile("sgd", "mse")
    fit(model=model)


@pytest.mark.parametrize(
    ("train", "says"),
    [
        (fit_twice, "from the same generator"),
        (lambda: fit(x=X, y=Y, validation_data=generate(), validation_steps=1), "drawn again"),
        (lambda: fit(x=OwnGenerator()), "OwnGenerator draws from a generator of its own: rng"),
        (lambda: fit(model=make_model(Draws())), "draws random numbers without a generator"),
        (fit_with_variable, "changes the variable count"),
        (lambda: fit(Keeps("attribute")), "Keeps.seen changes"),
        (lambda: fit(Keeps("class")), "Keeps.total changes"),
        (lambda: fit(Keeps("global")), "COUNT changes"),
        (lambda: fit(Keeps("model")), "It is called within the fit at"),
        (fit_with_closure, "losses changes"),
        (fit_shared_shuffle, "draws from the same seeds"),
    ],
)
def test_a_fit_that_would_go_on_with_other_numbers_is_refused(
    train: Callable[[], None], says: str
) -> None:
    with pytest.raises(CheckpointError, match="CKPT-017") as caught:
        train()
    assert says in caught.value.why
    assert f"{Path(__file__).name}:" in caught.value.what


def test_a_callback_list_of_keras_is_refused() -> None:
    model = make_model()
    callbacks = keras.callbacks.CallbackList([], model=model)
    with pytest.raises(CheckpointError, match="CKPT-017") as caught:
        model.fit(X, Y, verbose=0, callbacks=callbacks)  # pyright: ignore[reportArgumentType]
    assert "CallbackList" in caught.value.why


def test_loops_of_single_operations_are_refused() -> None:
    model = make_model()
    with pytest.raises(CheckpointError, match="CKPT-018") as caught:
        model.optimizer.apply([v * 0 for v in model.trainable_variables])
    assert Path(__file__).name in caught.value.what
    assert "single operations" in caught.value.why


def test_a_fit_behind_a_loop_is_refused() -> None:
    model = make_model()
    weights = model.trainable_variables
    model.optimizer.build(weights)
    tf.function(lambda: model.optimizer.apply([weight * 0 for weight in weights]))()
    with pytest.raises(CheckpointError, match="CKPT-017") as caught:
        fit(model=model)
    assert "also trains in a loop" in caught.value.why


def test_a_loop_is_kept_up_to_a_limit(
    resumed: Resumption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "LIMIT_BYTES", 1000)
    weight = tf.Variable(tf.zeros([100]))

    @tf.function
    def step() -> tf.Tensor:
        return weight.assign_add(tf.ones([100]))

    for _ in range(4):
        step()
    assert weight.numpy().tolist() == [4.0] * 100
    assert "keeps this loop up to step 3 only" in str(resumed.notes.printed[-1])
    resumed.loop._checkpoint.wait()
    assert max(path.name for path in (tmp_path / "loop").glob("step-*")) == "step-00000003"


@functools.cache
def table() -> tf.lookup.experimental.MutableHashTable:
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)


def count_in_python() -> tf.Tensor:
    return tf.numpy_function(lambda: np.float32(COUNT[0]), [], tf.float32)


def count_in_a_table() -> tf.Tensor:
    key = tf.constant(0, tf.int64)
    table().insert(key, table().lookup(key) + 1.0)
    return table().lookup(key)


@pytest.mark.parametrize(
    ("count", "operation"),
    [(count_in_python, "PyFunc"), (count_in_a_table, "LookupTableInsertV2")],
    ids=["Python", "table"],
)
def test_a_step_that_changes_what_is_no_variable_is_refused(
    count: Callable[[], tf.Tensor], operation: str
) -> None:
    weight = tf.Variable(1.0)
    table()
    step = tf.function(lambda: weight.assign_sub(count()))
    with pytest.raises(CheckpointError, match="CKPT-018") as caught:
        step()
    assert operation in caught.value.why
    assert float(weight) == 1.0


def test_constants_of_callbacks_are_not_refused() -> None:
    names, seen = ["one", "two"], {"x": X}
    lines: list[str] = []

    class Shows(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.data, self.lines, self.by_epoch = (X, Y), lines, {"0": [0.0]}

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.lines.append(f"{names[epoch]} {len(seen)} {COUNT}")
            self.by_epoch["1"] = [logs["loss"]]

    model = make_model()
    fit(Shows(), model=model)
    assert lines == [f"one 1 {COUNT}"]


def test_other_data_is_refused(tmp_path: Path) -> None:
    fit()
    (tmp_path / "fit-001").rename(tmp_path / "fit-002")
    with pytest.raises(CheckpointError, match="CKPT-020"):
        fit(x=X * 2, y=Y)


def test_the_seed_of_a_folder_stays(tmp_path: Path) -> None:
    seed = seed_of(str(tmp_path / "new"))
    assert seed_of(str(tmp_path / "new")) == seed != seed_of(str(tmp_path / "other"))
    (tmp_path / "new" / "start.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="CKPT-019"):
        seed_of(str(tmp_path / "new"))


def test_a_script_without_a_fit_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Resumption(str(tmp_path), 1, Notes()).resuming():
        pass
    assert "has kept nothing" in capsys.readouterr().err
