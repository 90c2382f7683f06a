"""Steps that are profiled: of models, of programs, and on the cores of a device."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener.devices import UsedDevice
from evener.errors import ProfileError
from evener.profile import ModelCosts
from evener.profiler import profile
from evener.profiler.layer_costs import layer_costs
from evener.profiler.measure import measure_step
from evener.profiler.profile import (
    affinity,
    cores_of_each,
    costing_strategy,
    held_to,
    trace_keras_step,
)
from unit.profiler.models import costs_of, dense, sequence


def make() -> keras.Model:
    model = sequence((4,), dense(8, "a", "tanh"), keras.layers.Dropout(0.5), dense(3, "b"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


SPECS = tf.TensorSpec([4]), tf.TensorSpec([], tf.int32)


def test_the_step_of_a_model() -> None:
    step = trace_keras_step(make(), *SPECS)
    assert step.trains
    assert step.batch_axes == (0, 0)
    assert {"loss", "accuracy"} <= set(step.structure)


def test_a_model_that_is_made_here_has_the_same_costs_without_memory() -> None:
    whole = layer_costs(trace_keras_step(make(), *SPECS))
    keras.utils.clear_session(free_memory=False)
    step = trace_keras_step(make, *SPECS)
    assert layer_costs(step) == whole
    with pytest.raises(tf.errors.OpError):
        step.concrete(tf.zeros([2, 4]), tf.zeros([2], tf.int32))
    assert len(measure_step(step, "cpu:0", [2]).layers) == 3


def test_a_terabyte_of_weights() -> None:
    def large() -> keras.Model:
        width = 1 << 18
        model = sequence((width,), dense(width, "a"), dense(width, "b"))
        model.compile("adam", "mse")
        return model

    spec = tf.TensorSpec([1 << 18])
    layers = layer_costs(trace_keras_step(large, spec, spec)).layers
    assert [layer.weight_bytes for layer in layers] == [4 * ((1 << 36) + (1 << 18))] * 2


def test_inputs_by_name() -> None:
    left, right = keras.Input((2,), name="left"), keras.Input((3,), name="right")
    joint = keras.layers.Concatenate(name="joint")([left, right])
    model = keras.Model({"left": left, "right": right}, dense(1, "head")(joint))
    model.compile("sgd", "mse")
    x = {"left": tf.TensorSpec([2]), "right": tf.TensorSpec([3])}
    costs = layer_costs(trace_keras_step(model, x, tf.TensorSpec([1])))
    assert [layer.name for layer in costs.layers] == ["joint", "head"]
    assert costs.input_bytes == (2 + 3 + 1) * 4


def test_a_model_has_to_be_compiled() -> None:
    with pytest.raises(ProfileError, match="PROF-010") as raised:
        trace_keras_step(sequence((4,), dense(8, "a")), *SPECS)
    assert "model.compile" in raised.value.fix


class StepFoundError(Exception):
    """Ends a program at its first training step."""


def samples_of_first_step(train: Any) -> int | None:
    """Return the samples of the first step of a program that is called in the strategy's scope."""
    found: list[int | None] = []

    def on_step(traced: Any, num_samples: int | None) -> None:
        assert traced.trains
        found.append(num_samples)
        raise StepFoundError

    with costing_strategy("cpu:0", on_step).scope(), pytest.raises(StepFoundError):
        train()
    return found[0]


def compiled() -> keras.Model:
    model = sequence((4,), dense(2, "a"), dense(1, "b"))
    model.compile("sgd", "mse")
    return model


X, Y = np.ones((40, 4), "float32"), np.ones((40, 1), "float32")


def test_a_smaller_last_batch_hides_no_size() -> None:
    assert samples_of_first_step(lambda: compiled().fit(X, Y, batch_size=16, verbose=0)) == 16
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(12)
    assert samples_of_first_step(lambda: compiled().fit(data, verbose=0, shuffle=False)) == 12


def test_the_data_of_the_step_count_and_not_the_last_that_was_made() -> None:
    def train() -> None:
        model = compiled()
        model.predict(X[:, :4], batch_size=7, verbose=0)
        strategy = tf.distribute.get_strategy()
        strategy.experimental_distribute_dataset(tf.data.Dataset.range(9).batch(5))
        model.fit(X, Y, batch_size=16, verbose=0)

    assert samples_of_first_step(train) == 16


def test_data_of_which_only_the_shapes_fit_leave_the_size_open() -> None:
    """A set for evaluation has the same shapes, and often other batches."""

    def train(size: int) -> None:
        strategy = tf.distribute.get_strategy()
        model = compiled()
        pairs = tf.data.Dataset.from_tensor_slices((X, Y))
        given = strategy.experimental_distribute_dataset(pairs.batch(16))
        strategy.experimental_distribute_dataset(pairs.batch(size))
        tf.function(lambda rows: strategy.run(model.train_step, args=(next(rows),)))(iter(given))

    assert samples_of_first_step(lambda: train(12)) is None
    assert samples_of_first_step(lambda: train(16)) == 16


def test_a_model_may_have_no_call() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = compiled()

        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.inner(data)))
            weights = self.inner.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss}

    def train() -> None:
        model = Own()
        model.compile("sgd")
        model.fit(X, batch_size=20, verbose=0)

    assert samples_of_first_step(train) == 20


@pytest.mark.parametrize("clips", [{}, {"global_clipnorm": 1.0}])
def test_an_update_belongs_to_its_layer_as_without_a_strategy(clips: dict[str, float]) -> None:
    found: list[ModelCosts] = []

    def on_step(traced: Any, num_samples: int | None) -> None:
        del num_samples
        found.append(layer_costs(traced))
        raise StepFoundError

    def model() -> keras.Model:
        return sequence((4,), dense(4, "a"), dense(4, "b"), dense(1, "c"))

    with costing_strategy("cpu:0", on_step).scope():
        trained = model()
        trained.compile(keras.optimizers.Adam(**clips), "mse")
        with pytest.raises(StepFoundError):
            trained.fit(X, Y, batch_size=16, verbose=0)
    expected = costs_of(model(), (1,), optimizer=keras.optimizers.Adam(**clips))
    assert found[0].updates_wait == expected.updates_wait == bool(clips)
    assert [layer.update_bytes for layer in found[0].layers] == [
        layer.update_bytes for layer in expected.layers
    ]
    assert all(layer.update_bytes for layer in expected.layers)


CPUS = [
    UsedDevice(name=f"cpu:{k}", kind="cpu", memory_bytes=None, physical="cpu:0") for k in range(2)
]
GPU = UsedDevice(name="gpu:0", kind="gpu", memory_bytes=None, physical="gpu:0")


@pytest.mark.parametrize(
    ("num_cores", "devices", "expected"),
    [
        (8, CPUS, [0, 1, 2, 3]),
        (8, [CPUS[0], GPU], list(range(8))),
        (1, CPUS, [0]),
        (3, CPUS, [0]),
        (2, [GPU], [0, 1]),
        (0, CPUS, []),
    ],
)
def test_the_cores_of_each(
    num_cores: int, devices: list[UsedDevice], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evener.profiler.profile.affinity", lambda: set(range(num_cores)))
    assert cores_of_each(devices) == expected


def test_all_threads_are_held_and_get_their_own_cores_back() -> None:
    (first, *_), every = sorted(affinity()), affinity()
    found: dict[str, set[int]] = {}
    go_on, ends = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait()
        found["held"] = affinity()
        ends.wait()
        found["after"] = affinity()

    thread = threading.Thread(target=work)
    thread.start()
    with pytest.raises(ValueError, match="inside"), held_to([first]):
        go_on.set()
        begun = threading.Thread(target=lambda: found.update(begun=affinity()))
        begun.start()
        begun.join()
        while "held" not in found:
            pass
        raise ValueError("inside")
    ends.set()
    thread.join()
    assert found == {"held": {first}, "begun": {first}, "after": every}
    with held_to([]):
        assert affinity() == every, "nothing is held where no cores are known"
    assert affinity() == every


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be divided")
def test_a_step_is_measured_on_the_cores_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    measure: Any = profile.measure_step

    def measured(*args: Any, **kwargs: Any) -> Any:
        seen.append(len(affinity()))
        return measure(*args, **kwargs)

    monkeypatch.setattr(profile, "measure_step", measured)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    traced = trace_keras_step(model, tf.TensorSpec([4]), tf.TensorSpec([1]))
    before = affinity()
    profile.profile_step(traced, CPUS, 4)
    profile.profile_step(traced, [replace(CPUS[1])], 4)
    assert seen == [max(1, len(before) // 2), len(before)]
    assert affinity() == before
