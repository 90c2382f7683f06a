"""The law for metrics, and for callbacks that read, stop, change or save the model."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from .candidates import Place
from .compare import state_of
from .harness import FIVE, THREE, TWO, agree, compile_model, fit_again, unequal_weights
from .models import mlp, numbers, pairs, regression, regressor, several, tabular, two_by_two


def largest_error(y_true: object, y_pred: object) -> object:
    """Return one number of a batch that is not a mean over samples."""
    return ops.max(ops.abs(y_true - y_pred))


def error_per_sample(y_true: object, y_pred: object) -> object:
    return ops.mean(ops.abs(y_true - y_pred), axis=-1)


class RunningMax(keras.metrics.Metric):
    """The largest prediction so far: not a sum of what replicas saw."""

    def __init__(self, name: str = "running_max") -> None:
        super().__init__(name=name)
        self.largest = self.add_weight(shape=(), initializer="zeros", name="largest")

    def update_state(self, y_true: object, y_pred: object, sample_weight: object = None) -> None:
        self.largest.assign(ops.maximum(self.largest, ops.max(y_pred)))

    def result(self) -> object:
        return self.largest


class LastBatch(keras.metrics.Metric):
    """The mean of the last batch alone: depends on the order of what it is given."""

    def __init__(self, name: str = "last_batch") -> None:
        super().__init__(name=name)
        self.mean = self.add_weight(shape=(), initializer="zeros", name="mean")
        self.first = self.add_weight(shape=(), initializer="zeros", name="first")

    def update_state(self, y_true: object, y_pred: object, sample_weight: object = None) -> None:
        self.mean.assign(ops.mean(y_pred))
        self.first.assign(ops.reshape(y_pred, (-1,))[0])

    def result(self) -> dict[str, object]:
        return {"mean_of_last": ops.convert_to_tensor(self.mean), "first_of_last": self.first + 0}


def train(place: Place, build, data, compiled, weights=None) -> dict[str, object]:
    x, y = data
    model = compile_model(place, build, compiled)
    fit = model.fit(
        x,
        y,
        sample_weight=weights,
        batch_size=16,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(x, y),
    )
    test = model.evaluate(x, y, sample_weight=weights, batch_size=20, verbose=0, return_dict=True)
    return {"weights": model.get_weights(), "history": fit.history, "evaluate": test}


def classifier_metrics() -> list[object]:
    """Return metrics of classes; the AUC's thresholds do not fall on a prediction."""
    return [
        "accuracy",
        keras.metrics.AUC(name="auc", multi_label=True, from_logits=True, num_thresholds=37),
        keras.metrics.F1Score(average="macro", name="f1"),
        keras.metrics.TopKCategoricalAccuracy(2, name="top2"),
        keras.metrics.Precision(name="precision", class_id=1, thresholds=0.31),
    ]


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_metrics_of_classes(weighted: bool) -> None:
    x, y = tabular(75)
    onehot = np.eye(4, dtype="float32")[y]

    def compiled() -> dict[str, object]:
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
        kind = "weighted_metrics" if weighted else "metrics"
        return {"loss": loss, kind: classifier_metrics()}

    weights = unequal_weights(75) if weighted else None
    agree(lambda place: train(place, mlp, (x, onehot), compiled, weights), THREE)


@pytest.mark.long
def test_metrics_of_numbers() -> None:
    def compiled() -> dict[str, object]:
        return {
            "loss": "mse",
            "metrics": ["mae", keras.metrics.RootMeanSquaredError(), keras.metrics.R2Score()],
            "weighted_metrics": ["mae", keras.metrics.RootMeanSquaredError(name="weighted_root")],
        }

    agree(
        lambda place: train(place, regressor, regression(75), compiled, unequal_weights(75)), THREE
    )


def test_own_metrics() -> None:
    """Functions (a number, or one per sample) and metrics that are not additive."""

    def compiled() -> dict[str, object]:
        metrics = [largest_error, error_per_sample, RunningMax(), LastBatch()]
        return {"loss": "mse", "metrics": metrics}

    agree(lambda place: train(place, regressor, regression(75), compiled), FIVE)


def test_metrics_by_output() -> None:
    def compiled() -> dict[str, object]:
        weighted = {"kind": ["accuracy"], "size": [keras.metrics.MeanAbsoluteError(name="far")]}
        return {**several(), "weighted_metrics": weighted}

    def experiment(place: Place) -> dict[str, object]:
        x, y = pairs(80)
        model = compile_model(place, two_by_two, compiled)
        fit = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return {"history": fit.history, "metrics": model.get_metrics_result()}

    agree(experiment, THREE)


def test_logs_of_every_batch() -> None:
    def experiment(place: Place) -> dict[str, object]:
        seen: dict[str, dict[str, float]] = {}

        def remember(batch: int, logs: dict[str, float]) -> None:
            seen[str(len(seen))] = {name: float(value) for name, value in logs.items()}

        model = compile_model(place, regressor, lambda: {"loss": "mse", "metrics": ["mae"]})
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=remember)
        x, y = regression(75)
        model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[callback])
        return {"logs": seen}

    assert len(agree(experiment, THREE)["logs"]) == 10  # type: ignore[arg-type]


def fit_with(place: Place, callbacks: list[object], **fit: object) -> dict[str, object]:
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
    def experiment(place: Place) -> dict[str, object]:
        lower = keras.callbacks.ReduceLROnPlateau(
            monitor="loss", factor=0.5, patience=1, min_delta=10.0
        )
        return fit_with(place, [lower], epochs=4)

    reference = agree(experiment)
    assert reference["rate"] < 0.01  # type: ignore[operator]


def test_learning_rate_scheduler() -> None:
    def experiment(place: Place) -> dict[str, object]:
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)
        return fit_with(place, [schedule], epochs=4)

    agree(experiment)


def test_swapped_weights_of_the_average() -> None:
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
    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if epoch == 2:
            raise Interrupted


@pytest.mark.parametrize("save_freq", ["epoch", 2])
def test_backup_and_restore(tmp_path: Path, save_freq: str | int) -> None:
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
