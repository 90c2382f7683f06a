"""The law for training under callbacks that read, stop, change or save the model."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
import tensorflow as tf

from .candidates import Place
from .compare import state_of
from .harness import THREE, TWO, agree, compile_model, fit_again
from .models import mlp, numbers, regression, regressor


def fit_with(place: Place, callbacks: list[object], **fit: object) -> dict[str, object]:
    """Fit the regressor for some epochs of three steps."""
    model = compile_model(place, regressor, numbers)
    results = fit_again(place, model, regression(43), callbacks=callbacks, **fit)
    results["rate"] = float(model.optimizer.learning_rate.numpy())
    return results


def test_early_stopping_restores_the_best_weights() -> None:
    """The first epoch is called the best, so training stops and goes back to it."""

    def experiment(place: Place) -> dict[str, object]:
        stop = keras.callbacks.EarlyStopping(
            monitor="loss", mode="max", patience=2, restore_best_weights=True
        )
        results = fit_with(place, [stop], epochs=6)
        results["stopped"] = stop.stopped_epoch
        return results

    reference = agree(experiment, THREE)
    assert reference["stopped"] == 2


@pytest.mark.long
def test_reduce_learning_rate_on_plateau() -> None:
    """The rate falls every epoch, and the steps after it are smaller."""

    def experiment(place: Place) -> dict[str, object]:
        lower = keras.callbacks.ReduceLROnPlateau(
            monitor="loss", factor=0.5, patience=1, min_delta=10.0
        )
        return fit_with(place, [lower], epochs=4)

    reference = agree(experiment)
    assert reference["rate"] < 0.01  # type: ignore[operator]


def test_learning_rate_scheduler() -> None:
    """The rate is set before every epoch."""

    def experiment(place: Place) -> dict[str, object]:
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)
        return fit_with(place, [schedule], epochs=4)

    agree(experiment)


def test_swapped_weights_of_the_average() -> None:
    """SwapEMAWeights puts the moving average in for the validation."""

    def experiment(place: Place) -> dict[str, object]:
        def compiled() -> dict[str, object]:
            optimizer = keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8)
            return {**numbers(), "optimizer": optimizer}

        model = compile_model(place, regressor, compiled)
        data = regression(43)
        swap = keras.callbacks.SwapEMAWeights()
        return fit_again(place, model, data, validation_data=data, callbacks=[swap], epochs=4)

    agree(experiment)


class Interrupted(Exception):
    """An error that ends a training early."""


class Interrupt(keras.callbacks.Callback):
    """Raises in the third epoch."""

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if epoch == 2:
            raise Interrupted


@pytest.mark.sampled(16)
@pytest.mark.parametrize("save_freq", ["epoch", 2])
def test_backup_and_restore(tmp_path: Path, save_freq: str | int) -> None:
    """A training that was interrupted goes on, and ends like one that was not."""
    counter = iter(range(100))

    def experiment(place: Place) -> dict[str, object]:
        folder = tmp_path / str(next(counter))

        def compiled() -> dict[str, object]:
            return {"loss": "mse", "optimizer": keras.optimizers.Adam(0.01, epsilon=1e-3)}

        def train(*more: keras.callbacks.Callback) -> dict[str, object]:
            keras.utils.set_random_seed(7)
            model = compile_model(place, regressor, compiled)
            backup = keras.callbacks.BackupAndRestore(str(folder), save_freq=save_freq)
            fit_again(place, model, regression(64), callbacks=[backup, *more], epochs=5)
            return state_of(model)

        with pytest.raises(Interrupted):
            train(Interrupt())
        return train()

    resumed = agree(experiment, THREE)

    def in_one_go(place: Place) -> dict[str, object]:
        def compiled() -> dict[str, object]:
            return {"loss": "mse", "optimizer": keras.optimizers.Adam(0.01, epsilon=1e-3)}

        model = compile_model(place, regressor, compiled)
        fit_again(place, model, regression(64), epochs=5)
        return state_of(model)

    if save_freq == "epoch":
        whole = agree(in_one_go, THREE)
        assert resumed["iterations"] == whole["iterations"]


def scalars_of(folder: Path) -> dict[str, list[float]]:
    """Return the scalars of TensorBoard's event files by folder and tag."""
    found: dict[str, list[float]] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name in ("scalars", ""):
                    numbers_ = found.setdefault(f"{path.parent.name}/{value.tag}", [])
                    numbers_.append(float(tf.make_ndarray(value.tensor)))
    return found


def test_tensorboard(tmp_path: Path) -> None:
    """The scalars in the event files are those of one device."""
    pytest.importorskip("tensorboard", reason="TensorFlow writes summaries with tensorboard")
    counter = iter(range(100))

    def experiment(place: Place) -> dict[str, object]:
        folder = tmp_path / str(next(counter))
        board = keras.callbacks.TensorBoard(str(folder), write_graph=False, update_freq=1)
        data = regression(43)
        model = compile_model(place, regressor, numbers)
        results = fit_again(place, model, data, validation_data=data, callbacks=[board])
        scalars = scalars_of(folder)
        results["scalars"] = {
            name: values for name, values in scalars.items() if "steps_per_second" not in name
        }
        assert any("epoch_loss" in name for name in scalars)
        return results

    agree(experiment)


def test_csv_and_lambda_callbacks(tmp_path: Path) -> None:
    """Predicting in the middle of fit does not disturb it."""
    counter = iter(range(100))

    def experiment(place: Place) -> dict[str, object]:
        predictions: dict[str, object] = {}
        model = compile_model(place, mlp, lambda: {"loss": "mse"})
        x, _ = regression(43)
        y = x[:, :4]

        def look(epoch: int, logs: object) -> None:
            predictions[str(epoch)] = model.predict(x[:5], verbose=0)

        path = tmp_path / f"{next(counter)}.csv"
        callbacks = [
            keras.callbacks.LambdaCallback(on_epoch_end=look),
            keras.callbacks.CSVLogger(str(path)),
        ]
        results = fit_again(place, model, (x, y), callbacks=callbacks)
        losses = [float(line.split(",")[1]) for line in path.read_text().splitlines()[1:]]
        return {**results, "predictions": predictions, "csv": losses}

    agree(experiment, TWO)
