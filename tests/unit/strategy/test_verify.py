"""`verify=True`: right runs are not accused, whatever rounding does; faults are found."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.errors import EvenerWarning
from evener.partition.emit import PartitionedStep
from evener.strategy import spot_check
from evener.strategy.rounding import find_differences
from evener.strategy.verify import Verifier
from unit.strategy.rounding_programs import PROGRAMS

pytestmark = pytest.mark.usefixtures("logical_cpus")

_LOW_PRECISION = {"bfloat16": 0.2, "mixed bfloat16": 0.05}
"""Least fault that must be found where rounding is larger than a hundredth."""
_SAME_WITH_A_FACTOR = ("loss near 0", "absolute error, clipped")
"""Programs in which a factor of all gradients changes nothing."""
Run = Callable[[Any, Any, Any, Any], Any]
TWO = ["cpu:0", "cpu:1"]
TOLD = "Verified against one device"


def verification_of(name: str) -> Any:
    """Return what is found in the first run of a program, and whether it is warned of."""
    keras.utils.set_random_seed(7)
    strategy = evener.Strategy(devices=TWO, shares=[5, 3], verify=True)
    with strategy.scope():
        model, x, y = PROGRAMS[name]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, y, batch_size=len(x), verbose=0, shuffle=False)
    [found] = strategy.verifications
    assert bool(found.differences) == any("ENG-080" in str(item.message) for item in caught)
    return found


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_run_is_not_accused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = verification_of(name)
    assert found.differences == ()
    assert found.results < 1
    assert "in the training step; rounding of the step" in capsys.readouterr().err


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", [*PROGRAMS][::3])
def test_a_spot_check_of_a_right_run_agrees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENER_VERIFY", raising=False)
    monkeypatch.setattr(spot_check, "begins_after", lambda _: 0.0)
    keras.utils.set_random_seed(7)
    strategy = evener.Strategy(devices=TWO, shares=[5, 3])
    with strategy.scope():
        model, x, y = PROGRAMS[name]()
    model.fit(x, y, batch_size=len(x), verbose=0, shuffle=False)
    spot_check.wait_for_checks()
    assert [(check.state, check.reason) for check in strategy.spot_checks] == [("agrees", "")]


def replacing(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Let the devices run a step in another way; the run on one device stays."""
    original = PartitionedStep.__call__

    def call(step: Any, flat: Sequence[Any], sizes: Any, *_: Any, **__: Any) -> Any:
        return run(lambda flat, sizes: original(step, flat, sizes)[0], flat, sizes, step), None

    monkeypatch.setattr(PartitionedStep, "__call__", call)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in _SAME_WITH_A_FACTOR][::3])
def test_a_gradient_with_a_factor_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factor = tf.Variable(1.0, trainable=False)
    original = keras.optimizers.Optimizer.apply

    def times(gradient: Any) -> Any:
        by = tf.cast(factor, gradient.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values * by, gradient.indices, gradient.dense_shape)
        return gradient * by

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        return original(self, [*map(times, grads)], trainable_variables)

    def run(call: Any, flat: Any, sizes: Any, _: Any) -> Any:
        begin = factor.assign(1.01 + _LOW_PRECISION.get(name, 0.0), read_value=False)
        with tf.control_dependencies([begin]):
            results = call(flat, sizes)
        with tf.control_dependencies(results):
            factor.assign(1.0, read_value=False)
        return results

    monkeypatch.setattr(keras.optimizers.Optimizer, "apply", apply)
    replacing(monkeypatch, run)
    assert verification_of(name).differences


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", [*PROGRAMS][1::3])
def test_a_sample_that_is_left_out_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(call: Any, flat: Any, sizes: Any, _: Any) -> Any:
        of_batch = [
            tensor[:-1] if tensor.dtype != tf.resource and tensor.shape.rank else tensor
            for tensor in flat
        ]
        return call(of_batch, sizes - tf.constant([0] * (sizes.shape[0] - 1) + [1]))

    replacing(monkeypatch, run)
    assert verification_of(name).differences


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", [*PROGRAMS][2::3])
def test_an_old_value_of_a_variable_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[tf.Variable] = []

    def run(call: Any, flat: Any, sizes: Any, _: Any) -> Any:
        weight = changed[0]
        now = weight.read_value()
        by = 0.01 + _LOW_PRECISION.get(name, 0.0)
        noise = np.random.default_rng(1).normal(1.0, 1.0, weight.shape)
        old = now * (1 - by * tf.constant(noise, now.dtype))
        with tf.control_dependencies([now]):
            begin = weight.assign(old, read_value=False)
        with tf.control_dependencies([begin]):
            results = call(flat, sizes)
        with tf.control_dependencies(results):
            weight.assign_add(now - old, read_value=False)
        return results

    replacing(monkeypatch, run)
    program = PROGRAMS[name]

    def noted() -> Any:
        made = program()
        changed.append(made[0].trainable_variables[0].value)
        return made

    monkeypatch.setitem(PROGRAMS, name, noted)
    assert verification_of(name).differences


def test_the_step_of_a_program_is_named() -> None:
    weight = tf.Variable(2.0)

    def double(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(weight * x)

    step = evener.distribute(double, devices=TWO, verify=True)
    step(tf.ones([4]))
    [found] = step.verifications
    assert found.step.startswith("double (")
    assert "test_verify.py:" in found.step


def test_a_loss_of_nothing_is_no_measure_of_itself() -> None:
    """A loss of 0 on one device and 1e-14 on several differs by rounding, not by 1e24."""

    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x) - tf.reduce_sum(tf.reverse(x, [0]))

    x = np.random.default_rng(0).normal(size=1000).astype("float32")
    distributed = evener.distribute(step, devices=TWO, shares=[5, 3], verify=True)
    distributed(x)
    assert distributed.verifications[0].results < 1.5
    assert distributed.verifications[0].differences == ()


def test_a_fault_is_told_with_its_step_and_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(x)

    replacing(monkeypatch, lambda call, flat, sizes, _: [call(flat, sizes)[0] * 1.001])
    distributed = evener.distribute(twice, devices=TWO, verify=True)
    with pytest.warns(EvenerWarning, match=r"ENG-080.*of twice \(.*result 0, by 1\.0e-03"):
        distributed(tf.ones([8]))


def test_the_first_call_is_verified_and_counts_once(capsys: Any) -> None:
    weight = tf.Variable(2.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        loss = tf.sqrt(tf.reduce_mean(tf.square(weight * x)))
        weight.assign_sub(0.1 * loss)
        return loss

    distributed = evener.distribute(step, devices=TWO, shares=[3, 1], verify=True)
    x = np.arange(9, dtype="float32")
    distributed(x)
    assert TOLD in capsys.readouterr().err
    [verification] = distributed.verifications
    assert verification.results < 1e-6
    assert verification.variables < 1e-6
    np.testing.assert_allclose(weight.numpy(), 2 - 0.2 * np.sqrt(np.mean(x**2)), rtol=1e-6)
    distributed(x)
    assert TOLD not in capsys.readouterr().err


def fitted(model: keras.Model, **options: Any) -> list[np.ndarray]:
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options)
    x = np.random.default_rng(1).normal(size=(20, 5)).astype("float32")
    history = model.fit(
        x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0, validation_data=(x, x[:, :1])
    )
    return [*model.get_weights(), *map(np.array, history.history.values())]


def small_model() -> keras.Model:
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Dense(7, activation="tanh"), keras.layers.BatchNormalization()]
    return keras.Sequential(
        [keras.Input((5,)), *layers, keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}], ids=str)
def test_fit_is_verified_and_trains_as_without(options: dict[str, Any], capsys: Any) -> None:
    results = []
    for verify in (False, True):
        strategy = evener.Strategy(devices=TWO, shares=[2, 1], verify=verify)
        with strategy.scope():
            model = small_model()
        results.append(fitted(model, **options))
    assert capsys.readouterr().err.count(TOLD) == len(strategy.verifications)
    assert len(strategy.verifications) >= 2  # training and evaluation
    for verification in strategy.verifications:
        assert max(verification.results, verification.variables) < 1e-5
    for verification, other in zip(*results, strict=True):
        np.testing.assert_array_equal(verification, other)


def test_a_loop_is_verified() -> None:
    strategy = evener.Strategy(devices=TWO, shares=[2, 1], verify=True)
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])

    @tf.function
    def epoch(data: tf.Tensor) -> None:
        for x in data:
            strategy.run(lambda batch: weight.assign_sub(tf.reduce_mean(batch, 0)), args=(x,))

    epoch(tf.ones([3, 6, 2]))
    assert len(strategy.verifications) == 1
    np.testing.assert_allclose(weight.numpy(), [-2.0, -1.0])


def verified(plain: Any, partitioned: Any, variables: list[tf.Variable]) -> Any:
    found: list[Any] = []
    verifier = Verifier("a step", variables, 2.0**-24, found.append)

    @tf.function
    def run() -> Any:
        return verifier.run(lambda _: plain(), partitioned, ())

    with pytest.warns(EvenerWarning, match="ENG-080"):
        run()
    return found[0]


def test_a_difference_is_warned_of() -> None:
    variable = tf.Variable(1.0)

    def partitioned() -> list[tf.Tensor]:
        variable.assign_add(0.5)
        return [tf.constant(2.0)]

    found = verified(lambda: [tf.constant(1.0)], partitioned, [variable])
    assert found.results == 1.0
    assert found.variables == 0.5


def test_other_shapes_are_a_difference_without_end() -> None:
    found = verified(lambda: [tf.zeros([2])], lambda: [tf.zeros([3])], [])
    assert found.results == float("inf")


@pytest.mark.parametrize("kind", ["drawn", "python", "loop"])
def test_what_cannot_be_undone_is_not_done_twice(kind: str, capsys: Any) -> None:
    calls: list[int] = []

    def count(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x

    def step(x: tf.Tensor) -> tf.Tensor:
        if kind == "drawn":
            return x + tf.random.uniform([])
        if kind == "python":
            return tf.numpy_function(count, [x], tf.float32)
        for _ in tf.range(1):
            x = tf.ensure_shape(tf.numpy_function(count, [x], tf.float32), [3])
        return x

    distributed = evener.distribute(step, devices=TWO, verify=True)
    with pytest.warns(EvenerWarning, match="ENG-087"):
        distributed(tf.ones([3]))
    assert distributed.verifications == []
    assert TOLD not in capsys.readouterr().err
    assert len(calls) == (kind != "drawn")


X = np.random.default_rng(0).normal(size=(5, 7)).astype("float32")
EPSILON = 2.0**-24


def differences(whole: Callable[..., Any], parts: Callable[..., Any]) -> list[float]:
    """Compare functions of an array of float32."""

    def compute(inputs: Any) -> Any:
        return [np.asarray(whole(inputs[0]))], [np.asarray(parts(inputs[0]))]

    found = find_differences(compute, [X], EPSILON, [True])
    return list(found.values())


def test_rounding_is_no_difference() -> None:
    assert differences(lambda x: x.sum(0), lambda x: x[:2].sum(0) + x[2:].sum(0)) == []


@pytest.mark.parametrize(
    "parts",
    [
        lambda x: x[:2].sum(0),
        lambda x: x.sum(0)[::-1],
        lambda x: x.sum(0) * 1.002,
        lambda x: x.sum(0) * np.nan,
        lambda x: x[:, :3].sum(0),
        lambda x: np.zeros(7, "float32"),
    ],
)
def test_what_stays_is_a_difference(parts: Callable[..., Any]) -> None:
    assert differences(lambda x: x.sum(0), parts) != []


def test_the_difference_is_relative_to_the_largest_number() -> None:
    [found] = differences(lambda x: x * 0 + 2, lambda x: x * 0 + 1)
    assert found == pytest.approx(0.5)


def test_whole_numbers_have_to_be_equal() -> None:
    assert differences(lambda x: x.argmax(0), lambda x: x.argmax(0)) == []
    [found] = differences(lambda x: x[:, 0].size, lambda x: x[:, 0].size + 1)
    assert found == float("inf")


def test_nans_at_the_same_places_are_equal() -> None:
    def roots(x: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.sqrt(x)

    assert differences(roots, roots) == []
    assert differences(roots, lambda x: np.sqrt(np.abs(x))) == [float("inf")]


def test_what_rounding_decides_in_one_draw_alone_is_left_out() -> None:
    """Such as a number beside the kink of a ReLU."""

    def parts(x: np.ndarray) -> np.ndarray:
        return x.sum(0) + np.array_equal(x, X)

    assert differences(lambda x: x.sum(0), parts) == []


def noise_of(x: np.ndarray) -> np.ndarray:
    """Return what is 0 but for rounding, and another number for every input."""
    return np.random.default_rng(abs(hash(x.tobytes()))).normal(size=7).astype("float32") * 1e-7


@pytest.mark.parametrize("noisy", ["whole", "parts", "both"])
def test_noise_is_no_difference(noisy: str) -> None:
    """Such as the gradient of a bias before a normalization, on one side or on both."""

    def zero(x: np.ndarray) -> np.ndarray:
        return np.zeros(7)

    whole = zero if noisy == "parts" else noise_of
    parts = zero if noisy == "whole" else lambda x: noise_of(x + 1)
    assert differences(whole, parts) == []


def test_a_floor_is_of_tensors_of_a_kind() -> None:
    """A millionth of the largest gradient counts as rounding; results have no such allowance."""

    def compute(inputs: Any) -> Any:
        small = np.full(3, 1e-6, "float32")
        return [np.full(3, 10.0), small], [np.full(3, 10.0), small * 2]

    assert find_differences(compute, [X], EPSILON, [True, True]) == {}
    assert list(find_differences(compute, [X], EPSILON, [True, False])) == [1]
