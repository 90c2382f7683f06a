"""The law for models with a ``train_step``, ``test_step`` or ``predict_step`` of their own.

In the styles of the Keras guides, under `fit`, `evaluate` and `predict`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from .candidates import Place, make_candidate
from .compare import state_of
from .harness import (
    CHANGES,
    FIVE,
    THREE,
    TWO,
    ChangeShares,
    Layout,
    agree,
    sgd,
    unequal_weights,
    usually,
)
from .loops import saying
from .models import BY_NAME, OPTIMIZERS, classes, regression, tabular
from .own_steps import (
    GAN,
    Accumulating,
    Autoencoder,
    ComputeLoss,
    ComputeMetrics,
    Distiller,
    Everything,
    KnownRows,
    KnownRowsAtTheEnd,
    KnownRowsInAFunction,
    MeanOfVector,
    OneTape,
    OverCase,
    OwnCompile,
    OwnTest,
    OwnTrackers,
    RawLoss,
    VectorLoss,
    Weighted,
    WithPenalties,
    stack,
)

Build = Callable[[], keras.Model]


def functional(kind: type[keras.Model]) -> Build:
    return lambda: kind(*stack())


COMPILED: dict[str, Any] = {"loss": "mse", "metrics": ["mae"]}


def fit_own(
    place: Place,
    kind: type[keras.Model],
    *,
    compiled: dict[str, Any] | None = None,
    rate: float = 0.05,
    samples: int = 75,
    layout: Layout | None = None,
    **fit: Any,
) -> dict[str, object]:
    x, y = regression(samples)
    with place.scope():
        model = functional(kind)()
        model.compile(optimizer=sgd(learning_rate=rate), **(compiled or {}))
    return fit_again(place, model, x, y, layout=layout, **fit)


def fit_again(
    place: Place, model: keras.Model, x: Any, y: Any, *, layout: Layout | None = None, **fit: Any
) -> dict[str, object]:
    settings = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0, **fit}
    if layout is not None:
        settings["callbacks"] = [ChangeShares(place, layout)]
    history = model.fit(x, y, **settings)
    optimizer = {f"{k} {v.name}": v.numpy() for k, v in enumerate(model.optimizer.variables)}
    return {**state_of(model), "history": flat(history.history), "optimizer": optimizer}


def flat(history: dict[str, list[Any]]) -> dict[str, Any]:
    """Return a history with the logs of nested names apart."""
    return {
        name: tf.nest.map_structure(lambda *steps: np.asarray(steps), *values)
        for name, values in history.items()
    }


STYLES: dict[str, tuple[type[keras.Model], dict[str, Any]]] = {
    "compute_loss": (ComputeLoss, COMPILED),
    "compute_metrics": (ComputeMetrics, COMPILED),
    "own trackers": (OwnTrackers, {}),
    "weighted": (Weighted, {}),
    "own test": (OwnTest, COMPILED),
    "everything": (Everything, COMPILED),
    "raw loss": (RawLoss, {"loss": "mse"}),
    "own compile": (OwnCompile, {"loss_fn": keras.losses.MeanSquaredError(), "factor": 0.5}),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("style", list(STYLES))
@pytest.mark.parametrize("layout", usually([TWO, FIVE], [TWO]), ids=str)
def test_fit(style: str, layout: Layout) -> None:
    kind, compiled = STYLES[style]
    agree(lambda place: fit_own(place, kind, compiled=compiled), layout, name=f"own step: {style}")


@pytest.mark.long
@pytest.mark.parametrize("style", list(STYLES)[::2])
def test_shares_change(style: str) -> None:
    kind, compiled = STYLES[style]
    layout = Layout(num_devices=3, by_batch=CHANGES[3])

    def experiment(place: Place) -> dict[str, object]:
        return fit_own(place, kind, compiled=compiled, layout=layout)

    agree(experiment, layout, name=f"own step: {style}")


@pytest.mark.parametrize(
    ("kind", "layouts"),
    [
        (KnownRows, (TWO, FIVE)),
        (KnownRowsAtTheEnd, (TWO,)),
        (KnownRowsInAFunction, (TWO,)),
    ],
    ids=["at once", "at the end", "in a function"],
)
def test_rows_that_are_known_while_tracing(
    kind: type[keras.Model], layouts: tuple[Layout, ...]
) -> None:
    """``x.shape[0]`` of a dataset that drops the remainder is a number; of five, some have none."""

    def experiment(place: Place) -> dict[str, object]:
        x, y = regression(23)
        with place.scope():
            model = functional(kind)()
            model.compile(optimizer=sgd(learning_rate=0.05), loss="mse")
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(5, drop_remainder=True)
        results = fit_again(place, model, data, None, batch_size=None)
        return results | {"evaluate": model.evaluate(data, verbose=0)}

    agree(experiment, *layouts)


@pytest.mark.long
def test_sum_of_samples() -> None:
    """The gradient of a vector of losses is the sum over the samples, on any devices."""
    agree(lambda place: fit_own(place, VectorLoss, rate=0.002), TWO, FIVE)


@pytest.mark.long
def test_mean_that_is_not_scaled() -> None:
    """A mean over a replica's samples is put right, and that is said."""

    with saying():
        agree(lambda place: fit_own(place, MeanOfVector), THREE)


@pytest.mark.covering(1)
@pytest.mark.long
@pytest.mark.parametrize("kind", [ComputeLoss, ComputeMetrics, Weighted])
@pytest.mark.parametrize("loss", ["sum_over_batch_size", "mean_with_sample_weight"])
def test_sample_weights(kind: type[keras.Model], loss: str) -> None:
    weights = unequal_weights(75)
    compiled = {"loss": keras.losses.MeanSquaredError(reduction=loss), "weighted_metrics": ["mae"]}
    given = {} if kind is Weighted else compiled
    agree(lambda place: fit_own(place, kind, compiled=given, sample_weight=weights), THREE)


@pytest.mark.covering(1)
@pytest.mark.long
@pytest.mark.parametrize("how", ["steps_per_execution", "run_eagerly"])
@pytest.mark.parametrize("style", ["compute_loss", "own trackers", "everything", "raw loss"])
def test_several_steps_at_once_and_eagerly(style: str, how: str) -> None:
    kind, compiled = STYLES[style]
    value: Any = 3 if how == "steps_per_execution" else True

    def experiment(place: Place) -> dict[str, object]:
        return fit_own(place, kind, compiled={**compiled, how: value})

    if how == "run_eagerly":
        with saying("ENG-086"):
            agree(experiment, THREE)
    else:
        agree(experiment, THREE)


@pytest.mark.long
@pytest.mark.parametrize("style", ["own test", "everything"])
def test_validation_data(style: str) -> None:
    kind, compiled = STYLES[style]
    x, y = regression(43)
    agree(
        lambda place: fit_own(
            place,
            kind,
            compiled={**compiled, "loss": "mse"},
            validation_data=(x, y),
            validation_batch_size=20,
        ),
        TWO,
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", [OwnTest, Everything])
@pytest.mark.parametrize("steps", usually([1, 2], [2]))
@pytest.mark.parametrize("layout", usually([TWO, FIVE], [TWO]), ids=str)
def test_evaluate_and_predict(kind: type[keras.Model], steps: int, layout: Layout) -> None:
    x, y = regression(75)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = functional(kind)()
            model.compile(optimizer=sgd(), steps_per_execution=steps, **COMPILED)
        return {
            "evaluate": model.evaluate(x, y, batch_size=20, verbose=0, return_dict=True),
            "predict": model.predict(x[:43], batch_size=20, verbose=0),
            "tiny": model.predict(x[:3], batch_size=2, verbose=0),
            "on_batch": model.predict_on_batch(x[:7]),
            "test_on_batch": model.test_on_batch(x[:7], y[:7], return_dict=True),
        }

    agree(experiment, layout)


@pytest.mark.long
@pytest.mark.parametrize("style", ["compute_loss", "raw loss"])
def test_train_on_batch(style: str) -> None:
    x, y = regression(75)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = functional(STYLES[style][0])()
            model.compile(optimizer=sgd(), **STYLES[style][1])
        logs = [
            model.train_on_batch(x[a:b], y[a:b], return_dict=True)
            for a, b in ((0, 16), (16, 30), (30, 32), (32, 33))
        ]
        return {**state_of(model), "logs": flat({k: [g[k] for g in logs] for k in logs[0]})}

    agree(experiment, TWO, FIVE)


class Recorder(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[float] = []
        self.epochs: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(float(logs["loss"]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(float(logs["loss"]))


@pytest.mark.long
@pytest.mark.parametrize("style", ["compute_loss", "own trackers", "raw loss"])
def test_callbacks(style: str) -> None:
    kind, compiled = STYLES[style]

    def experiment(place: Place) -> dict[str, object]:
        recorder = Recorder()
        callbacks = [
            recorder,
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            keras.callbacks.EarlyStopping(monitor="loss", min_delta=10.0, patience=1),
        ]
        results = fit_own(place, kind, compiled=compiled, callbacks=callbacks, epochs=4)
        return {**results, "batches": recorder.batches, "epochs": recorder.epochs}

    agree(experiment, THREE)


@pytest.mark.long
def test_gan() -> None:
    """Two optimizers; the second update sees what the first has written."""
    real = regression(75)[0]
    noise = np.random.default_rng(9).normal(size=(75, 3)).astype("float32")

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = GAN()
            model.compile(
                d_optimizer=OPTIMIZERS["adam"](),
                g_optimizer=OPTIMIZERS["adam"](),
                loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
            )
        history = model.fit(real, noise, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return {**state_of(model), "history": history.history}

    agree(experiment, TWO, FIVE)


@pytest.mark.long
def test_autoencoder() -> None:
    """Means over samples that a person wrote are put right, and that is said."""

    x = regression(75)[0]

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = Autoencoder()
            model.compile(optimizer=OPTIMIZERS["adam"]())
        history = model.fit(x, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return {**state_of(model), "history": history.history}

    with saying():
        agree(experiment, THREE)


@pytest.mark.long
def test_distiller() -> None:
    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = Distiller()
            model.compile(optimizer=sgd(), **classes())
        return fit_again(place, model, *tabular(75))

    agree(experiment, THREE)


@pytest.mark.long
def test_penalties_and_added_losses() -> None:
    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = WithPenalties()
            model(np.zeros((1, 8), "float32"))
            model.compile(optimizer=sgd(), **COMPILED)
        return fit_again(place, model, *regression(75))

    agree(experiment, TWO, FIVE)


@pytest.mark.covering(1)
@pytest.mark.long
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("name", ["cnn", "lstm", "transformer"])
def test_models(name: str, optimizer: str) -> None:
    case = BY_NAME[name]
    layouts = {"cnn": THREE, "lstm": FIVE, "transformer": TWO}

    def experiment(place: Place) -> dict[str, object]:
        x, y = case.data(75)
        compiled = {**case.compiled(), "metrics": ["accuracy" if name != "lstm" else "mae"]}
        with place.scope():
            model = OverCase(case.build())
            model.compile(optimizer=OPTIMIZERS[optimizer](), **compiled)
        return fit_again(place, model, x, y)

    agree(experiment, layouts[name])


@pytest.mark.long
def test_super() -> None:
    agree(lambda place: fit_own(place, OneTape, compiled=COMPILED), TWO)


def test_an_optimizer_in_a_condition() -> None:
    """Gradients that are added up by hand, and applied every second step."""
    x, y = regression(75)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = Accumulating()
            model.build((None, 8))
            model.compile(optimizer=sgd(), loss="mse")
            model.optimizer.build(model.trainable_variables)
        return fit_again(place, model, x, y, epochs=2)

    agree(experiment, THREE)


@pytest.mark.long
def test_one_step_traced_once_for_all_shares() -> None:
    """Changing shares does not trace a model's own step again."""
    x, y = regression(80)
    traces = []

    class Counting(ComputeLoss):
        def train_step(self, data: Any) -> Any:
            traces.append(1)
            return super().train_step(data)

    layout = Layout(num_devices=3, by_batch=CHANGES[3])
    place = make_candidate(3, "even")
    with place.scope():
        model = functional(Counting)()
        model.compile(optimizer=sgd(), **COMPILED)
    fit_again(place, model, x, y, layout=layout, epochs=4)
    assert len(traces) <= 2 * 3, "one or two traces, each with three replicas"
