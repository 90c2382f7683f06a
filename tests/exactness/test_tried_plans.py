"""Plans that are tried in steps of a run: the fastest stays, with the numbers of one device.

The clock is that of the test: a step takes as long as the test says for its plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener import Plan
from evener.strategy.prepared import PreparedStep
from exactness.xla_calls import recorded

ALONE = Plan.data_parallel(["cpu:0"])
EVEN = Plan.data_parallel(["cpu:0", "cpu:1"])
SLOW = Plan.data_parallel(["cpu:1"], num_micro_batches=4)
PLANS = [ALONE, EVEN, SLOW]
BATCH, SAMPLES, EPOCHS = 16, 104, 12  # the last batch of an epoch has 8 samples


class Clock:
    """Clock that goes on by the seconds of the plan that is in use, whenever it is read."""

    def __init__(self, strategy: evener.Strategy, seconds: list[float]) -> None:
        self._strategy, self._seconds = strategy, seconds
        self._now = 0.0
        self.used: list[int] = []

    def __call__(self) -> float:
        runs_by = self._strategy.runs_by
        # The last one is the plan of the start without XLA.
        number = next((k for k, plan in enumerate(PLANS) if runs_by(plan)), len(PLANS))
        self.used.append(number)
        self._now += self._seconds[number]
        return self._now


def tried(seconds: list[float], *, start: int = 2) -> tuple[evener.Strategy, list[str], Clock]:
    strategy, lines = evener.Strategy(PLANS[start]), list[str]()
    clock = Clock(strategy, seconds)
    strategy.try_plans(PLANS, lines.append, clock=clock)
    return strategy, lines, clock


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(SAMPLES, 8)).astype("float32")
    return x, np.sin(x[:, :1])


def model(
    strategy: evener.Strategy | None, *, dropout: float = 0.3, **compiled: object
) -> keras.Model:
    keras.utils.set_random_seed(1)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        layers = [
            keras.layers.Dense(16, activation="tanh"),
            *([keras.layers.Dropout(dropout)] if dropout else []),
            keras.layers.Dense(1),
        ]
        made = keras.Sequential([keras.Input((8,)), *layers])
        made.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **compiled)
    return made


Trained = tuple[dict[str, list[float]], list[np.ndarray]]


def fit(made: keras.Model) -> Trained:
    x, y = data()
    options = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0}
    history = made.fit(x, y, validation_data=(x, y), **options).history
    return history, made.get_weights()


def fit_longer(made: keras.Model) -> Trained:
    x, y = data()
    history = made.fit(x, y, batch_size=BATCH, epochs=3 * EPOCHS, verbose=0).history
    return history, made.get_weights()


def fit_whole_batches(made: keras.Model) -> None:
    """Train as many steps without a smaller batch, of which XLA would make another step."""
    x, y = data()
    made.fit(x[:96], y[:96], batch_size=BATCH, epochs=EPOCHS + 2, verbose=0)


def train_on_batches(made: keras.Model) -> Trained:
    x, y = data()
    logs: list[float] = []
    for _ in range(EPOCHS):
        for begin in range(0, SAMPLES, BATCH):
            part = slice(begin, begin + BATCH)
            logs.append(made.train_on_batch(x[part], y[part], return_dict=True)["loss"])
    return {"loss": logs}, made.get_weights()


def loop(made: keras.Model) -> Trained:
    x, y = data()
    strategy = made.distribute_strategy
    optimizer = made.optimizer

    @tf.function
    def step(batch: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(made(batch, training=True) - target))
        optimizer.apply(tape.gradient(loss, made.trainable_variables), made.trainable_variables)
        return loss

    losses: list[float] = []
    for _ in range(EPOCHS):
        for begin in range(0, SAMPLES, BATCH):
            part = slice(begin, begin + BATCH)
            args = (tf.constant(x[part]), tf.constant(y[part]))
            losses.append(float(strategy.run(step, args)))
    return {"loss": losses}, made.get_weights()


def assert_same(
    train: Callable[[keras.Model], Trained], strategy: evener.Strategy, **compiled: object
) -> None:
    history, weights = train(model(strategy, **compiled))
    expected_history, expected = train(model(None, **compiled))
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4, err_msg=name)
    for weight, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("train", [fit, loop])
def test_a_slow_plan_is_left_and_the_numbers_are_those_of_one_device(
    train: Callable[[keras.Model], Trained],
) -> None:
    strategy, lines, clock = tried([0.76, 1.2, 3.8])
    assert_same(train, strategy)
    assert strategy.runs_by(ALONE)
    assert set(clock.used) == {0, 1, 2}
    (line,) = lines
    assert line == (
        "tried in steps of this run: cpu:0 alone 760.0 ms, even shares on cpu:0, cpu:1 1.2 s, "
        "cpu:1 alone in 4 micro-batches 3.8 s a step; cpu:0 alone stays"
    )


@pytest.mark.long
def test_with_several_steps_in_a_call() -> None:
    strategy, lines, clock = tried([3.0, 1.0, 2.0], start=1)
    assert_same(fit_longer, strategy, steps_per_execution=3)
    assert strategy.runs_by(EVEN) and len(lines) == 1
    assert set(clock.used) == {0, 1, 2}


@pytest.fixture
def a_gpu_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Keras choose XLA, as it does where TensorFlow lists a device that is no CPU."""
    listed = tf.config.list_physical_devices
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")

    def list_all(device_type: str | None = None) -> list[tf.config.PhysicalDevice]:
        return [*listed(device_type), *([] if device_type else [gpu])]

    monkeypatch.setattr(tf.config, "list_physical_devices", list_all)


@pytest.mark.long
@pytest.mark.usefixtures("a_gpu_in_the_list")
def test_xla_that_does_not_pay_is_left() -> None:
    strategy, lines, clock = tried([3.0, 2.0, 3.0, 1.0], start=1)
    assert_same(train_on_batches, strategy, dropout=0)
    assert strategy.runs_by(EVEN, by_xla=False)
    assert set(clock.used) == {0, 1, 2, 3}
    assert lines[0].endswith(
        "even shares on cpu:0, cpu:1 without XLA 1.0 s a step; "
        "even shares on cpu:0, cpu:1 without XLA stays"
    )


@pytest.mark.long
@pytest.mark.usefixtures("a_gpu_in_the_list")
@pytest.mark.parametrize(("without", "is_left"), [(2.0, False), (0.5, True)])
def test_what_stays_runs_afterwards(
    without: float, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = recorded(monkeypatch)
    strategy, _, clock = tried([3.0, 1.0, 3.0, without], start=1)
    made = model(strategy, dropout=0)
    fit_whole_batches(made)
    assert strategy.runs_by(EVEN, by_xla=not is_left) and 3 in clock.used
    compiled.clear()
    made.predict(data()[0], batch_size=13, verbose=0)
    assert compiled and any(compiled) is not is_left


@pytest.mark.long
@pytest.mark.usefixtures("a_gpu_in_the_list")
@pytest.mark.parametrize(
    "compiled",
    [
        pytest.param({"dropout": 0, "jit_compile": True}, id="the program insists"),
        pytest.param({"dropout": 0.3}, id="it draws numbers"),
        pytest.param({"dropout": 0, "jit_compile": False}, id="no XLA anyway"),
    ],
)
def test_xla_is_not_left(compiled: dict[str, object]) -> None:
    """If the program insists, and if XLA draws other random numbers than TensorFlow."""
    strategy, lines, clock = tried([3.0, 2.0, 3.0, 1.0], start=1)
    fit_whole_batches(model(strategy, **compiled))
    assert strategy.runs_by(EVEN) and lines
    assert set(clock.used) == {0, 1, 2}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let steps in 4 micro-batches run out of memory, after they have changed the variables."""
    results, failed = PreparedStep._results, list[str]()

    def fail(value: np.ndarray) -> np.ndarray:
        failed.append("failed")
        raise MemoryError("no memory is left")

    def failing_results(self: PreparedStep, tensors: list[tf.Tensor], sizes: tf.Tensor) -> object:
        found = results(self, tensors, sizes)
        if len(self.partitioned.partition.layout.micro_batches) < 4 or not self.trains:
            return found
        with tf.control_dependencies([found[0]]):
            # Metrics and weights were written before the loss is there.
            reads = [variable.read_value() for variable in self.variables[:1]]
        with tf.control_dependencies(reads):
            value = tf.numpy_function(fail, [tf.identity(found[0])], found[0].dtype)
        return [tf.ensure_shape(value, found[0].shape), *found[1:]]

    monkeypatch.setattr(PreparedStep, "_results", failing_results)
    yield failed


@pytest.mark.long
def test_a_plan_that_runs_out_of_memory_falls_back_and_loses_no_batch(failing: list[str]) -> None:
    strategy, lines, _ = tried([2.0, 1.0, 0.1], start=0)
    assert_same(fit, strategy)
    assert failing
    assert strategy.runs_by(EVEN)
    assert "cpu:1 alone in 4 micro-batches does not work here" in lines[0]
    assert "even shares on cpu:0, cpu:1 stays" in lines[1]


def test_a_short_run_changes_nothing() -> None:
    strategy, lines, clock = tried([0.1, 0.1, 0.1])
    x, y = data()
    model(strategy).fit(x[:BATCH], y[:BATCH], batch_size=BATCH, epochs=3, verbose=0)
    assert strategy.runs_by(SLOW) and not lines and set(clock.used) == {2}


def test_a_step_that_draws_from_seeds_keeps_its_plan() -> None:
    """Each trace has a state of its own: a change of traces would draw other numbers."""
    strategy, lines, _ = tried([0.1, 0.2, 0.3])
    with strategy.scope():
        weight = tf.Variable(1.0)

    @tf.function
    def step(batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * batch * tf.random.uniform(tf.shape(batch), seed=3))
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    for _ in range(20):
        strategy.run(step, (tf.ones([16]),))
    assert strategy.trial is None and strategy.runs_by(SLOW) and not lines


@pytest.mark.long
def test_another_function_runs_by_the_first_plan_meanwhile() -> None:
    strategy, _, _ = tried([0.1, 0.2, 0.3])
    made = model(strategy)
    x, y = data()
    for _ in range(8):
        made.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
        assert strategy.runs_by(SLOW) or strategy.trial is None
        made.evaluate(x, y, verbose=0)
        made.predict(x, verbose=0)
    assert strategy.runs_by(ALONE)


@pytest.mark.long
def test_a_model_that_trains_after_another_is_tried() -> None:
    strategy, lines, _ = tried([0.1, 0.2, 0.3])
    x, y = data()
    for _ in range(6):
        # As in a cross-validation: too few steps for a trial by one of the models.
        model(strategy).fit(x[: 4 * BATCH], y[: 4 * BATCH], batch_size=BATCH, verbose=0)
    assert not lines and strategy.trial is not None
    assert_same(fit, strategy)
    assert strategy.runs_by(ALONE) and len(lines) == 1


def test_a_step_that_takes_from_a_queue_loses_nothing_by_a_plan_that_fails(
    failing: list[str],
) -> None:
    """The step keeps its plan: its queue cannot be put back."""
    seen: list[float] = []
    strategy, lines, _ = tried([2.0, 1.0, 0.1], start=0)
    with strategy.scope():
        weight = tf.Variable(1.0)

    queue = tf.queue.FIFOQueue(3000, [tf.float32], [[]])
    queue.enqueue_many([tf.range(1.0, 2000.0)])

    @tf.function
    def step(batch: tf.Tensor) -> tf.Tensor:
        batch = batch * queue.dequeue()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * batch)
        weight.assign_sub(1e-9 * tape.gradient(loss, weight))
        return tf.reduce_mean(batch)

    for _ in range(60):
        seen.append(float(strategy.run(step, (tf.ones([16]),))))
    assert seen == [float(number) for number in range(1, 61)]
    assert not lines and not failing
