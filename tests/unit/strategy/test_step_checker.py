"""A few samples of the first batch, in parts and as a whole: what the check finds."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener import Plan
from evener.errors import EngineError, EvenerWarning
from evener.strategy import prepared, spot_check
from evener.strategy.spot_check import Sides, SpotCheck, StepChecker, begins_after, wait_for_checks
from unit.strategy.wrong_rules import WRONG_RULES

pytestmark = pytest.mark.usefixtures("logical_cpus")
DEVICES = ["cpu:0", "cpu:1", "cpu:2"]
X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")


@pytest.fixture(autouse=True)
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENER_VERIFY")
    # A check that costs more begins later, when the test has ended.
    monkeypatch.setattr(spot_check, "begins_after", lambda _: 0.0)


def loss_of(name: str) -> Any:
    """Return a trained step whose loss a wrong rule changes, and its weight."""
    program = WRONG_RULES[name].program

    def step(weight: tf.Variable, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = program(x * weight)
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    return step


def by_distribute(name: str, **options: Any) -> list[SpotCheck]:
    weight = tf.Variable(tf.ones([4]))
    step = evener.distribute(lambda x: loss_of(name)(weight, x), devices=DEVICES, **options)
    step(X)
    wait_for_checks()
    return step.spot_checks


def by_loop(name: str) -> list[SpotCheck]:
    strategy = evener.Strategy(devices=DEVICES)
    with strategy.scope():
        weight = tf.Variable(tf.ones([4]))

    @tf.function
    def epoch(data: tf.data.Dataset) -> None:
        for x in data:
            strategy.run(loss_of(name), args=(weight, x))

    epoch(tf.data.Dataset.from_tensor_slices(np.stack([X, X])))
    wait_for_checks()
    return list(strategy.spot_checks)


class Model(keras.Model):
    """A model of one weight, with a step of its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.step = loss_of(name)
        self.scale = self.add_weight(shape=(4,), initializer="ones")

    def call(self, x: Any) -> Any:
        return x * self.scale

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"loss": self.step(self.scale.value, data)}


def by_fit(name: str) -> list[SpotCheck]:
    strategy = evener.Strategy(devices=DEVICES)
    with strategy.scope():
        model = Model(name)
        model.compile()
    model.fit(tf.data.Dataset.from_tensor_slices(np.stack([X, X])), shuffle=False, verbose=0)
    wait_for_checks()
    return list(strategy.spot_checks)


DOORS = {"distribute": by_distribute, "loop": by_loop, "fit": by_fit}


@pytest.mark.covering(1)
@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", WRONG_RULES)
@pytest.mark.parametrize("door", DOORS)
def test_wrong_rules_are_warned_of(door: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [right] = DOORS[door](name)
    assert (right.state, right.reason) == ("agrees", "")
    WRONG_RULES[name].install(monkeypatch)
    with pytest.warns(EvenerWarning, match="ENG-089"):
        [wrong] = DOORS[door](name)
    assert wrong.state == "differs"
    assert wrong.num_samples == 5


def checked(step: Callable[..., Any], *arguments: Any, **options: Any) -> SpotCheck:
    """Run a step once; return what its check found."""
    distributed = evener.distribute(step, **({"devices": DEVICES} | options))
    distributed(*arguments)
    wait_for_checks()
    [found] = distributed.spot_checks
    return found


def test_a_wrong_rule_behind_an_update_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the second half of the step of a GAN."""
    weight, other = tf.Variable(tf.ones([4])), tf.Variable(tf.ones([4]))

    def step(x: Any) -> Any:
        weight.assign_sub(0.1 * tf.reduce_mean(x, 0))
        return other.assign_sub(0.1 * tf.reduce_mean(tf.cumsum(x * weight, 0), 0))

    assert checked(step, X).state == "agrees"
    WRONG_RULES["cumulative sums begin anew"].install(monkeypatch)
    with pytest.warns(EvenerWarning, match="ENG-089"):
        assert checked(step, X).state == "differs"


def test_the_warning_names_the_variable_and_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    WRONG_RULES["cumulative sums begin anew"].install(monkeypatch)
    weight = tf.Variable(tf.ones([4]), name="scale_of_features")

    def step(x: Any) -> Any:
        return weight.assign_sub(tf.reduce_mean(tf.cumsum(x * weight, 0) * x, 0))

    with pytest.warns(
        EvenerWarning, match=r"(?s)scale_of_features.*test_step_checker.py:\d+.*verify=True"
    ):
        found = checked(step, X)
    assert len(found.differences) >= 1


def from_generator() -> Callable[[Any], Any]:
    generator = tf.random.Generator.from_seed(3)
    return lambda x: tf.reduce_sum(tf.square(x + generator.normal(tf.shape(x))), 0)


DRAWS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "generator": from_generator,
    "stateful": lambda: lambda x: tf.reduce_sum(tf.square(x + tf.random.normal(tf.shape(x))), 0),
    "stateless": lambda: (
        lambda x: tf.reduce_sum(tf.square(x + tf.random.stateless_normal(tf.shape(x), [1, 2])), 0)
    ),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_random_numbers_are_those_of_the_program(kind: str) -> None:
    """A check draws from no generator of the program."""
    numbers = []
    for verify in (False, None):
        tf.random.set_seed(5)
        step = evener.distribute(DRAWS[kind](), devices=DEVICES, verify=verify)
        step(X)
        wait_for_checks()
        numbers.append(step(X).numpy())
    assert [check.state for check in step.spot_checks] == ["agrees"]
    assert not [thread for thread in threading.enumerate() if thread.name == "evener-spot-check"]
    np.testing.assert_array_equal(*numbers)


def test_stages_and_micro_batches_are_checked() -> None:
    plan = Plan.data_parallel(["cpu:0", "cpu:1"], shares=(2, 1), num_micro_batches=2)
    weight = tf.Variable(tf.ones([4]))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.sqrt(tf.reduce_mean(tf.square(x * weight)))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    found = checked(step, X, plan=plan, devices=None)
    assert (found.state, found.num_samples) == ("agrees", 5)


def test_training_is_the_same_to_the_bit() -> None:
    results = []
    for verify in (False, None):
        keras.utils.set_random_seed(3)
        strategy = evener.Strategy(devices=DEVICES, shares=[2, 1, 1], verify=verify)
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dropout(0.5)]
            )
            model.compile("adam", "mse")
        model.fit(X, X[:, :3], batch_size=5, epochs=2, verbose=0)
        wait_for_checks()
        results.append(model.get_weights())
    assert [check.state for check in strategy.spot_checks] == ["agrees"]
    for wanted, got in zip(*results, strict=True):
        np.testing.assert_array_equal(wanted, got)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_gradients_that_are_rounding_alone_are_no_difference(policy: str) -> None:
    """Of biases before a normalization; and ReLUs, max-pooling and half precision round."""
    keras.config.set_dtype_policy(policy)
    strategy = evener.Strategy(devices=DEVICES, shares=[2, 1, 1])
    with strategy.scope():
        model = keras.Sequential([keras.Input((8, 8, 2))])
        for _ in range(3):
            model.add(keras.layers.Conv2D(4, 3, padding="same"))
            model.add(keras.layers.BatchNormalization())
            model.add(keras.layers.ReLU())
        for layer in (keras.layers.MaxPooling2D(), keras.layers.Flatten(), keras.layers.Dense(3)):
            model.add(layer)
        model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(12, 8, 8, 2)).astype("float32")
    model.fit(x, x[:, 0, :3, 0], batch_size=12, verbose=0)
    wait_for_checks()
    assert [(check.state, check.reason) for check in strategy.spot_checks] == [("agrees", "")]


@pytest.mark.parametrize(
    ("step", "options", "reason"),
    [
        (lambda x: tf.reshape(x, [3, -1]) * 2.0, {}, "InvalidArgumentError"),
        (lambda x: tf.reduce_sum(x) / x.shape[0], {}, "batches of one size"),
        (lambda x: x, {"devices": ["cpu:0"]}, "one part"),
        (lambda x: x, {"batch_norm": "per_device"}, "BatchNormalization"),
        (lambda x: tf.numpy_function(np.sum, [x], tf.float32), {}, "nothing that the parts"),
    ],
)
def test_what_cannot_be_checked_says_why(step: Any, options: Any, reason: str) -> None:
    found = checked(step, X, **options)
    assert found.state == "not done"
    assert reason in found.reason


def against_labels(num_labels: int) -> Callable[[Any], Any]:
    """Return a step whose labels have a number of rows, as those of GANs often have."""
    labels = tf.constant(np.linspace(0.0, 1.0, num_labels, dtype="float32")[:, None])
    return lambda x: tf.reduce_mean(tf.square(tf.tanh(x[:, :1]) - labels))


@pytest.mark.parametrize("door", ["eager", "graph"])
def test_a_step_that_fits_one_batch_size_is_checked_on_whole_batches(door: str) -> None:
    """Of fewer rows than there are labels TensorFlow makes no mean on one device either."""
    step = evener.distribute(against_labels(32), devices=DEVICES)
    x = tf.constant(np.random.default_rng(0).normal(size=[32, 4]).astype("float32"))
    (tf.function(lambda x: step(x)) if door == "graph" else step)(x)
    wait_for_checks()
    [found] = step.spot_checks
    assert (found.state, found.reason, found.num_samples) == ("agrees", "", 32)


def test_a_large_batch_of_which_no_sample_can_be_left_out_is_not_checked() -> None:
    found = checked(against_labels(65), tf.ones([65, 4]))
    assert (found.state, "it has 65" in found.reason) == ("not done", True)


def test_a_batch_of_one_sample_waits_for_another() -> None:
    step = evener.distribute(lambda x: tf.reduce_sum(x), devices=DEVICES)
    step(X[:1])
    assert step.spot_checks == []
    step(X[:2])
    wait_for_checks()
    assert [(check.state, check.num_samples) for check in step.spot_checks] == [("agrees", 2)]


@pytest.mark.parametrize("door", ["distribute", "fit"])
def test_a_failing_check_is_silent(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(Sides, "trace", fail)
    [found] = DOORS[door]("a mean of means")
    assert (found.state, found.reason) == ("not done", "RuntimeError: no kernel")
    assert not [thread for thread in threading.enumerate() if thread.name == "evener-spot-check"]


def test_rows_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later steps call no Python: not in `fit`, and not in an epoch in a function."""
    taken: list[int] = []
    take = StepChecker._take
    monkeypatch.setattr(StepChecker, "_take", lambda self, *a: taken.append(1) or take(self, *a))
    strategy = evener.Strategy(devices=DEVICES)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X, X[:, 0], batch_size=2, epochs=3, verbose=0)
    wait_for_checks()
    assert taken == [1]


def test_a_check_that_costs_much_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begins_after(0.6) == 0
    assert begins_after(2.0) == pytest.approx(140)
    monkeypatch.setattr(spot_check, "begins_after", lambda _: 140.0)
    assert by_distribute("a mean of means") == []
    assert by_loop("a mean of means") == []


def test_what_may_not_read_the_clock_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (spot_check, prepared):
        monkeypatch.setattr(module, "is_deterministic", lambda: True)
    monkeypatch.setattr(tf, "timestamp", None)
    assert [check.state for check in by_loop("a mean of means")] == ["agrees"]


@pytest.mark.parametrize(("verify", "count"), [(None, 0), (True, 1)])
def test_the_environment_decides_where_nobody_else_does(
    verify: bool | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENER_VERIFY", "0")
    step = evener.distribute(lambda x: tf.reduce_sum(x), devices=DEVICES, verify=verify)
    step(X)
    wait_for_checks()
    assert step.spot_checks == []
    assert len(step.verifications) == count
    monkeypatch.setenv("EVENER_VERIFY", "yes")
    with pytest.raises(EngineError, match="ENG-012"):
        evener.distribute(lambda x: x, devices=DEVICES)


PROGRAM = """
import os, signal, sys, time
import evener
import tensorflow as tf
from evener.strategy.spot_check import StepChecker
compare = StepChecker._compare
def slow(self, *arguments):
    time.sleep(2)
    found = compare(self, *arguments)
    print(found.state, flush=True)
    return found
StepChecker._compare = slow
step = {step}(evener.distribute(lambda x: tf.reduce_sum(x), devices=["cpu:0", "cpu:1"]))
print(float(step(tf.ones([6]))), flush=True)
{end}
"""


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("step", "end", "status"),
    [
        ("tf.function", "sys.exit(3)", 3),
        (
            "tf.function",
            # A shell lets what it starts behind it ignore the signal.
            "signal.signal(signal.SIGINT, signal.default_int_handler); "
            "os.kill(os.getpid(), signal.SIGINT)",
            None,
        ),
        ("", "", 0),
    ],
)
def test_the_end_of_a_program_waits_for_its_check(
    step: str, end: str, status: int | None, run_python: Any
) -> None:
    done: subprocess.CompletedProcess[str] = run_python(
        PROGRAM.format(step=step, end=end), env={"EVENER_VERIFY": None}, num_cpus=2, check=False
    )
    assert done.stdout.split() == ["6.0", "agrees"]
    assert done.returncode == (-signal.SIGINT if status is None else status)
    assert ("KeyboardInterrupt" in done.stderr) == (status is None)
