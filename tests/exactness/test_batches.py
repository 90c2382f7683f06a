"""The law for batches of every size, and for every way to put them through a model."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

from .candidates import Place
from .compare import state_of
from .harness import (
    CHANGES,
    FIVE,
    THREE,
    TWO,
    ChangeShares,
    Layout,
    agree,
    compile_model,
    fit_again,
    fit_model,
    take,
)
from .models import (
    classes,
    mlp,
    numbers,
    pairs,
    regression,
    regressor,
    several,
    tabular,
    two_by_two,
)

FIVE_EVEN = Layout(num_devices=5)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("steps_per_execution", [2, 5])
def test_steps_per_execution(steps_per_execution: int) -> None:
    """Five steps, in executions of 2 + 2 + 1 and in one of 5; the shares change between."""
    x, y = tabular(75)

    def experiment(place: Place) -> dict[str, object]:
        compiled = {**classes(), "steps_per_execution": steps_per_execution}
        model = compile_model(place, mlp, lambda: compiled)
        changes = ChangeShares(place, Layout(num_devices=2, by_batch=CHANGES[2]))
        results = fit_again(place, model, (x, y), callbacks=[changes])
        results["evaluate"] = model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
        results["predict"] = model.predict(x, batch_size=16, verbose=0)
        return results

    agree(experiment)


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("num_samples", "batch_size"), [(17, 16), (20, 7), (12, 1), (13, 2)])
def test_batches_smaller_than_the_shares(num_samples: int, batch_size: int) -> None:
    """Batches of one or two samples for five devices, and last batches of one."""
    data = tabular(num_samples)
    agree(
        lambda place: fit_model(place, mlp, data, classes, batch_size=batch_size, epochs=1),
        FIVE_EVEN,
        FIVE,
    )


def test_train_on_batch_of_any_size() -> None:
    """The first batch is partial, and every batch has another size."""
    sizes = (3, 16, 1, 7, 2, 5, 16, 11)
    x, y = regression(sum(sizes))

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, regressor, numbers)
        logs, begin = [], 0
        for size in sizes:
            rows = slice(begin, begin + size)
            logs.append(model.train_on_batch(x[rows], y[rows], return_dict=True))
            begin += size
        return {**state_of(model), "logs": {str(step): log for step, log in enumerate(logs)}}

    agree(experiment, THREE)


def test_on_batch_siblings() -> None:
    """test_on_batch and predict_on_batch, with sample weights, from the first call on."""
    x, y = regression(11)
    weights = np.linspace(0.0, 2.0, 11).astype("float32")

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, regressor, numbers)
        return {
            "predict": model.predict_on_batch(x[:5]),
            "test": model.test_on_batch(x, y, sample_weight=weights, return_dict=True),
            "train": model.train_on_batch(x, y, sample_weight=weights, return_dict=True),
            "test after": model.test_on_batch(x[:2], y[:2], return_dict=True),
            "predict after": model.predict_on_batch(x),
            **state_of(model),
        }

    agree(experiment, THREE)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("batch_size", [1, 4, 37])
def test_predict_keeps_the_order(batch_size: int) -> None:
    """Row k of the output belongs to row k of the input, in every output."""
    x, _ = pairs(37)
    x["left"][:, 0] = np.arange(37)

    def build() -> keras.Model:
        left, right = keras.Input((6,), name="left"), keras.Input((4,), name="right")
        outputs = {"same": layers.Identity()(left), "sum": layers.Dense(2)(right)}
        return keras.Model({"left": left, "right": right}, outputs)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = build()
        return {"predict": model.predict(x, batch_size=batch_size, verbose=0)}

    reference = agree(experiment, TWO, FIVE)
    assert np.array_equal(reference["predict"]["same"], x["left"])  # type: ignore[index]


def test_evaluate_alone() -> None:
    """evaluate without a fit before it, with partial batches and sample weights."""
    x, y = tabular(43)
    weights = np.linspace(0.0, 2.0, 43).astype("float32")

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, mlp, lambda: {**classes(), "weighted_metrics": ["accuracy"]})
        return {
            "plain": model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True),
            "weighted": model.evaluate(
                x, y, sample_weight=weights, batch_size=8, verbose=0, return_dict=True
            ),
            "listed": {str(i): v for i, v in enumerate(model.evaluate(x, y, verbose=0))},
        }

    agree(experiment, THREE)


def test_fit_evaluate_recompile_fit() -> None:
    """A model goes through several rounds, and gets another optimizer and loss between."""
    x, y = regression(40)

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, regressor, numbers)
        first = fit_again(place, model, (x, y), epochs=1)
        again = fit_again(place, model, (x, y), initial_epoch=1, epochs=2)
        with place.scope():
            model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), loss="huber")
        return {"first": first, "again": again, "other": fit_again(place, model, (x, y))}

    agree(experiment)


def test_validation_data() -> None:
    """Validation inside fit, with its own batch size, weights and frequency."""
    x, y = tabular(60)
    weights = np.linspace(0.0, 2.0, 21).astype("float32")

    def experiment(place: Place) -> dict[str, object]:
        return fit_model(
            place,
            mlp,
            (x[:39], y[:39]),
            lambda: {**classes(), "weighted_metrics": ["accuracy"]},
            validation_data=(x[39:], y[39:], weights),
            validation_batch_size=8,
            validation_freq=2,
            epochs=4,
        )

    reference = agree(experiment)
    assert "val_loss" in reference["history"]  # type: ignore[operator]


@pytest.mark.long
def test_validation_split() -> None:
    """The last part of several inputs and outputs is kept for validation."""
    x, y = pairs(64)
    # Whole batches of 16: 48 to train on, 16 to validate with (the reason is in models.py).
    agree(lambda place: fit_model(place, two_by_two, (x, y), several, validation_split=0.25), THREE)


def test_shares_that_are_measured() -> None:
    """With shares left to evener the result does not depend on what it measures."""
    data = tabular(75)
    agree(
        lambda place: fit_model(place, mlp, data, classes),
        Layout(num_devices=2, shares=None),
        Layout(num_devices=3, shares=None),
    )


@pytest.mark.long
def test_shares_as_fractions() -> None:
    """Fractions mean the same as counts."""
    x, y = tabular(40)
    agree(
        lambda place: fit_model(place, mlp, (take(x, slice(40)), y), classes),
        Layout(num_devices=2, shares=(0.625, 0.375)),
        Layout(num_devices=3, shares=(0.0, 1.0, 0.0)),
    )


@pytest.mark.long
def test_shuffled_fit_sees_the_same_batches() -> None:
    """Shuffling draws from the same seed as on one device."""
    data = tabular(48)
    agree(lambda place: fit_model(place, mlp, data, classes, shuffle=True))
