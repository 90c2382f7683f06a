"""Reading what the engine and Keras know about the work of each device."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import evener
import evener.report
from evener.recording.measured import gpu_memory
from evener.report.progress import TrainingWork

X = np.random.default_rng(0).normal(size=(75, 4)).astype("float32")
Y = X[:, :1]


def make_model(**compiled: object) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", **compiled)
    return model


def fit(model: keras.Model, **settings: object) -> evener.report.Progress:
    progress = evener.report.Progress()
    model.fit(
        X,
        Y,
        batch_size=8,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(X[:20], Y[:20]),
        callbacks=[progress],
        **settings,
    )
    return progress


@pytest.mark.parametrize("steps_per_execution", [1, 3, 20])
def test_an_evener_strategy_counts_every_sample_once(
    logical_cpus: tuple[str, ...], steps_per_execution: int
) -> None:
    strategy = evener.Strategy(devices=logical_cpus[:2], shares=[3, 1])
    with strategy.scope():
        model = make_model(steps_per_execution=steps_per_execution)
    work = fit(model).work
    assert sum(device.num_samples or 0 for device in work) == 150
    assert [device.num_samples for device in work] == pytest.approx([112, 38], abs=2)
    assert all((device.busy_seconds or 0) > 0 for device in work)
    assert [device.share for device in work] == [0.75, 0.25]
    assert {d.device: d.owned.num_bytes for d in work} == strategy.owner_registry.owned_bytes()
    assert sum(d.owned.num_variables for d in work) == len(strategy.owner_registry.variables)


def test_one_device_under_a_strategy(logical_cpus: tuple[str, ...]) -> None:
    strategy = evener.Strategy(devices=logical_cpus[:1])
    with strategy.scope():
        model = make_model()
    (work,) = fit(model).work
    assert (work.device, work.share, work.num_samples) == ("cpu:0", 1.0, 150)
    assert work.busy_seconds and work.busy_seconds > 0


def test_steps_that_were_traced_before_are_counted_by_keras(logical_cpus: tuple[str, ...]) -> None:
    strategy = evener.Strategy(devices=logical_cpus[:2], shares=[3, 1])
    with strategy.scope():
        model = make_model()
    model.fit(X, Y, batch_size=8, verbose=0)
    assert TrainingWork(model).source is None
    work = fit(model).work
    assert [device.num_samples for device in work] == [112, 38]
    assert [device.busy_seconds for device in work] == [None, None]


def test_a_second_training_counts_anew(logical_cpus: tuple[str, ...]) -> None:
    strategy = evener.Strategy(devices=logical_cpus[:2], shares=[3, 1])
    with strategy.scope():
        model = make_model()
    first, second = (fit(model).work for _ in range(2))
    assert [d.num_samples for d in first] == [d.num_samples for d in second]
    for device in second:
        assert device.busy_seconds and device.busy_seconds > 0


def test_a_model_without_a_strategy_is_on_one_device(logical_cpus: tuple[str, ...]) -> None:
    (work,) = fit(make_model()).work
    assert (work.device, work.share, work.num_samples) == ("cpu:0", 1.0, 150)
    # 49 weights, two slots for each, and a handful of counters.
    assert 49 * 4 * 3 <= work.owned.num_bytes <= 49 * 4 * 3 + 100


def test_a_model_trained_eagerly_is_counted_too(logical_cpus: tuple[str, ...]) -> None:
    (work,) = fit(make_model(run_eagerly=True)).work
    assert work.num_samples == 150


def test_a_cpu_has_no_memory_figure() -> None:
    assert gpu_memory("cpu:0") is None


def test_the_public_names_of_the_report() -> None:
    for name in evener.report.__all__:
        assert getattr(evener.report, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        evener.report.Nothing  # noqa: B018
