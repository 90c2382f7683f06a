"""The law for metrics: computed from all samples, once."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from .candidates import Place
from .harness import FIVE, THREE, agree, compile_model, unequal_weights
from .models import mlp, pairs, regression, regressor, several, tabular, two_by_two


def largest_error(y_true: object, y_pred: object) -> object:
    """Return one number of a batch that is not a mean over samples."""
    return ops.max(ops.abs(y_true - y_pred))


def error_per_sample(y_true: object, y_pred: object) -> object:
    """Return one number per sample."""
    return ops.mean(ops.abs(y_true - y_pred), axis=-1)


class RunningMax(keras.metrics.Metric):
    """The largest prediction so far: not a sum of what replicas saw."""

    def __init__(self, name: str = "running_max") -> None:
        super().__init__(name=name)
        self.largest = self.add_weight(shape=(), initializer="zeros", name="largest")

    def update_state(self, y_true: object, y_pred: object, sample_weight: object = None) -> None:
        """Take the largest."""
        self.largest.assign(ops.maximum(self.largest, ops.max(y_pred)))

    def result(self) -> object:
        """Return the largest."""
        return self.largest


class LastBatch(keras.metrics.Metric):
    """The mean of the last batch alone: depends on the order of what it is given."""

    def __init__(self, name: str = "last_batch") -> None:
        super().__init__(name=name)
        self.mean = self.add_weight(shape=(), initializer="zeros", name="mean")
        self.first = self.add_weight(shape=(), initializer="zeros", name="first")

    def update_state(self, y_true: object, y_pred: object, sample_weight: object = None) -> None:
        """Remember the mean of the batch and the first prediction in it."""
        self.mean.assign(ops.mean(y_pred))
        self.first.assign(ops.reshape(y_pred, (-1,))[0])

    def result(self) -> dict[str, object]:
        """Return both, under names of their own."""
        return {"mean_of_last": ops.convert_to_tensor(self.mean), "first_of_last": self.first + 0}


def train(place: Place, build, data, compiled, weights=None) -> dict[str, object]:
    """Fit with validation, and evaluate; every log is compared."""
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


@pytest.mark.sampled(16)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_metrics_of_classes(weighted: bool) -> None:
    """Counting metrics, unweighted and weighted, in fit, validation and evaluate."""
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
    """Means, roots, correlations; weighted and unweighted side by side."""

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
    """Metrics and weighted metrics of several outputs, whole batches (see models.py)."""

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
    """Callbacks read after every batch the logs of one device."""

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
