"""A fit that was ended and resumed is one without interruption, to the bit."""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from checkpoint.programs import BATCH, KINDS, EndAt, EndedError, X, Y, make_model, train
from evener.errors import CheckpointError, EvenerWarning
from evener.plan import PlanDevice, Replica, Stage
from exactness.references import shared

pytestmark = [
    pytest.mark.usefixtures("logical_cpus"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
]


def ended(folder: Path, data: dict[str, Any], *more: Any, at: int, **options: Any) -> None:
    with pytest.raises(EndedError):
        train(make_model(), folder, data, *more, EndAt(at), **options)


def assert_equal(
    left: tuple[list[np.ndarray], dict[str, list[float]]],
    right: tuple[list[np.ndarray], dict[str, list[float]]],
) -> None:
    assert left[1] == right[1]
    for value, other in zip(left[0], right[0], strict=True):
        np.testing.assert_array_equal(value, other)


# Of an epoch of 13 batches: in the first one, at its last batch, behind it, in the second.
@pytest.mark.parametrize(("kind", "at"), [*zip(KINDS, itertools.cycle([3, 13, 14, 16]))])
@pytest.mark.sampled(50)
def test_the_resumed_fit_sees_the_batches_of_an_undisturbed_one(
    tmp_path: Path, kind: str, at: int
) -> None:
    folder = tmp_path / "whole"
    keras.utils.set_random_seed(1)  # Of the data, as `make_model` does.
    expected = shared(f"fit {kind}", lambda: train(make_model(), folder, KINDS[kind]()))
    ended(tmp_path / "ended", KINDS[kind](), at=at)
    assert_equal(train(make_model(), tmp_path / "ended", KINDS[kind]()), expected)


@pytest.mark.long
def test_a_fit_without_a_seed_is_resumed_too(tmp_path: Path) -> None:
    def in_order(seed: int) -> list[float]:
        # As in another process, all generators begin elsewhere.
        random.seed(seed)
        np.random.seed(seed)
        seen: list[float] = []
        model = make_model(seed=None)
        step = model.train_step

        def train_step(data: Any) -> Any:
            tf.numpy_function(lambda x: seen.append(float(x[0, 0])), [data[0]], [])
            return step(data)

        model.train_step = train_step
        at = EndAt(16) if seed == 1 else EndAt(1000)
        try:
            train(model, tmp_path, KINDS["arrays"](), at)
        except EndedError:
            return seen
        return seen

    first, second = in_order(1), in_order(2)
    epoch = -(-len(X) // BATCH)
    # The last step before the end was not saved; it is done again.
    assert len(first) == 16 and len(second) == 3 * epoch - 15
    assert second[0] == first[15]
    assert sorted(first[epoch:15] + second[: 2 * epoch - 15]) != sorted(first[:epoch])
    begins = {float(value) for value in X[:, 0]}
    assert set(first) | set(second) <= begins


def test_the_order_of_an_epoch_takes_every_sample_once(tmp_path: Path) -> None:
    seen: list[np.ndarray] = []

    def note(x: Any) -> None:
        seen.append(np.array(x))

    model = make_model()
    step = model.train_step

    def train_step(data: Any) -> Any:
        tf.numpy_function(note, [data[0]], [])
        return step(data)

    model.train_step = train_step
    train(model, tmp_path, KINDS["arrays"](), epochs=2)
    first, second = np.concatenate(seen[:13]), np.concatenate(seen[13:])
    assert not np.array_equal(first, second)
    for rows in (first, second):
        np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(X, axis=0))


def monitors() -> tuple[Any, ...]:
    return (
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, factor=0.5),
        keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=10.0),
    )


@pytest.mark.long
def test_callbacks_go_on_where_they_were(tmp_path: Path) -> None:
    data = {**KINDS["arrays"](), "validation_data": (X, Y)}
    expected = train(make_model(), tmp_path / "whole", data, *monitors(), epochs=8)
    assert len(expected[1]["loss"]) < 8
    ended(tmp_path / "ended", data, *monitors(), at=29, epochs=8)
    again = train(make_model(), tmp_path / "ended", data, *monitors(), epochs=8)
    assert_equal(again, expected)


class SignalAt(keras.callbacks.Callback):
    """Sends a signal to its own process, in a step or in the validation behind it."""

    def __init__(self, number: int, step: int, *, in_validation: bool = False) -> None:
        super().__init__()
        self._at = [number, step, in_validation]

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._come(in_validation=False)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._come(in_validation=True)

    def _come(self, *, in_validation: bool) -> None:
        number, left, where = self._at
        if where == in_validation:
            self._at[1] = left - 1
            if left == 1:
                signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_acts_at_the_end_of_the_step(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    error = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    more = {"epochs": 1, "every_steps": None}
    with pytest.raises(error) as caught:
        train(make_model(), tmp_path, KINDS["arrays"](), SignalAt(number, 5), **more)
    assert number == signal.SIGINT or caught.value.code == 143
    assert [path.name for path in tmp_path.glob("s*")] == ["step-00000005"]
    assert signal.getsignal(number) is before


def test_a_handler_that_returns_lets_the_fit_go_on(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    data = {**KINDS["arrays"](), "validation_data": (X, Y), "validation_batch_size": 50}
    try:
        at = SignalAt(signal.SIGTERM, 2, in_validation=True)
        again = train(make_model(), tmp_path / "a", data, at, epochs=1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]
    assert_equal(again, train(make_model(), tmp_path / "b", data, epochs=1))


# With a row of an epoch that is done again; with a row behind the checkpoint of its epoch.
@pytest.mark.parametrize(
    ("at", "every", "appends"), [(29, 20, False), pytest.param(16, 1, True, marks=pytest.mark.long)]
)
def test_log_files_and_best_weights_are_those_of_a_whole_run(
    tmp_path: Path, at: int, every: int, appends: bool
) -> None:
    def callbacks(name: str) -> list[Any]:
        file = tmp_path / f"{name}.csv"
        if appends and not file.exists():
            file.write_text("epoch,loss\n0,of an earlier run\n")
        # The first epoch is the best.
        best = keras.callbacks.EarlyStopping("mae", mode="max", restore_best_weights=True)
        best.patience = 9
        return [keras.callbacks.CSVLogger(file, append=appends), best]

    data, more = KINDS["arrays"](), {"every_steps": every, "every_epoch": False}
    expected = train(make_model(), tmp_path / "whole", data, *callbacks("whole"), **more)
    ended(tmp_path / "run", data, *(killed := callbacks("run")), at=at, **more)
    killed[0].csv_file.close()
    for _ in range(2):
        # The second time, all epochs were done before.
        again = callbacks("run")
        assert_equal(train(make_model(), tmp_path / "run", data, *again, **more), expected)
        assert again[0].append == appends
        rows = (tmp_path / "run.csv").read_text()
        assert rows == (tmp_path / "whole.csv").read_text() and len(rows.splitlines()) > 3


@pytest.mark.long
def test_several_steps_in_one_call_are_resumed(tmp_path: Path) -> None:
    def model() -> keras.Model:
        made = make_model()
        made.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], steps_per_execution=3)
        return made

    expected = train(model(), tmp_path / "whole", KINDS["arrays"]())
    with pytest.raises(EndedError):
        train(model(), tmp_path / "ended", KINDS["arrays"](), EndAt(7))
    assert_equal(train(model(), tmp_path / "ended", KINDS["arrays"]()), expected)


def test_a_fit_that_is_done_stays_done(tmp_path: Path) -> None:
    expected = train(make_model(), tmp_path, KINDS["arrays"]())
    assert_equal(train(make_model(), tmp_path, KINDS["arrays"]()), expected)


def pipeline() -> evener.Plan:
    stages = (
        Stage(device="cpu:0", layers=("hidden", "norm")),
        Stage(device="cpu:1", layers=("drop", "out")),
    )
    return evener.Plan(
        devices=tuple(map(PlanDevice.named, ("cpu:0", "cpu:1"))),
        replicas=(Replica(share=1, num_micro_batches=2, stages=stages),),
    )


LAYOUTS: dict[str, Callable[[], evener.Strategy]] = {
    "one": lambda: evener.Strategy(devices=["cpu:0"]),
    "two": lambda: evener.Strategy(devices=["cpu:0", "cpu:1"], shares="even"),
    "uneven": lambda: evener.Strategy(devices=["cpu:0", "cpu:1", "cpu:2"], shares=[5, 2, 1]),
    "pipeline": lambda: evener.Strategy(plan=pipeline()),
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("first", "second"),
    [("one", "two"), ("two", "uneven"), ("uneven", "pipeline"), ("pipeline", "one")],
)
def test_a_fit_goes_on_under_another_plan(tmp_path: Path, first: str, second: str) -> None:
    def model(layout: str) -> keras.Model:
        with LAYOUTS[layout]().scope():
            return make_model()

    data = KINDS["arrays"]
    expected, logs = train(make_model(), tmp_path / "whole", data())
    with pytest.raises(EndedError):
        train(model(first), tmp_path / "ended", data(), EndAt(16))
    weights, resumed = train(model(second), tmp_path / "ended", data())
    for value, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)
    for name, values in logs.items():
        np.testing.assert_allclose(resumed[name], values, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_a_shuffle_without_a_seed_is_told(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    code = f"""
        import warnings
        import keras, numpy as np, tensorflow as tf
        import evener

        warnings.simplefilter("always")
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensor_slices((np.ones((8, 2)), np.ones(8)))
        for seed in (1, None):
            print("seed", seed)
            folder = {str(tmp_path)!r} + str(seed)
            with warnings.catch_warnings(record=True) as caught:
                shuffled = data.shuffle(8, seed=seed).batch(4)
                # Made when Python has the method `fit` already.
                model.fit(shuffled, verbose=0, callbacks=[evener.CheckpointCallback(folder)])
            print([str(w.message)[:10] for w in caught if "CKPT" in str(w.message)])
    """
    assert run_python(code).stdout.split("\n")[:4] == [
        "seed 1",
        "[]",
        "seed None",
        "['[CKPT-012]']",
    ]


def test_a_failure_to_write_lets_the_run_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evener.checkpoint import storage

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "write_state", fail)
    with pytest.warns(EvenerWarning, match=r"CKPT-009[\s\S]*No space left"):
        _, history = train(make_model(), tmp_path, KINDS["arrays"](), epochs=1)
    assert len(history["loss"]) == 1
    with pytest.raises(CheckpointError, match="CKPT-004"):
        train(make_model(), tmp_path, KINDS["arrays"](), epochs=1, on_failure="raise")


def test_seconds_between_checkpoints(tmp_path: Path) -> None:
    now = iter(range(10_000))
    train(
        make_model(),
        tmp_path,
        KINDS["arrays"](),
        epochs=1,
        every_steps=None,
        every_seconds=6,
        every_epoch=False,
        keep=10,
        clock=lambda: float(next(now)),
    )
    # The clock is read at each of 13 steps and at each save.
    assert sorted(path.name for path in tmp_path.glob("s*")) == ["step-00000006", "step-00000012"]


@pytest.mark.long
def test_wrong_use_is_refused(tmp_path: Path) -> None:
    for wrong in ({"every_steps": 0}, {"every_steps": 1.5}, {"every_seconds": -1}):
        with pytest.raises(CheckpointError, match="CKPT-011"):
            evener.CheckpointCallback(tmp_path, **wrong)
    two = [evener.CheckpointCallback(tmp_path), evener.CheckpointCallback(tmp_path)]
    with pytest.raises(CheckpointError, match="CKPT-010"):
        make_model().fit(X, Y, verbose=0, callbacks=two)
    callback = evener.CheckpointCallback(tmp_path)
    callback.set_model(make_model())
    with pytest.raises(CheckpointError, match="CKPT-008"):
        callback.on_train_begin()
