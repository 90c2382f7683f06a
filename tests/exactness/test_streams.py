"""Stateful random numbers of steps whose batches have several sizes: those of plain TensorFlow.

TensorFlow begins the streams of random kernels anew with each trace. A step that is traced for
other sizes than the program's own function would be draws other numbers, and nothing says so. So
programs are drawn: random operations, signatures, relaxed shapes, lengths that alternate, a smaller
last batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener

WIDTH, STEPS = 4, 7


SHARES = ((3, 1), (5, 3, 1), (2, 0, 3), (1, 4))


def in_condition(h: Any, _: int) -> Any:
    return tf.cond(tf.reduce_sum(h) > 0, lambda: tf.nn.dropout(h, 0.4), lambda: h * 0.5)


def in_loop(h: Any, _: int) -> Any:
    for _ in tf.range(2):
        h += 0.1 * tf.random.normal([1, 1, WIDTH], dtype=h.dtype)
    return h


def in_function(h: Any, _: int) -> Any:
    return tf.function(lambda h: tf.nn.dropout(h, 0.3))(h)


def by_size(h: Any, _: int) -> Any:
    """A step that asks for a size in Python."""
    length = h.shape[1]
    return tf.nn.dropout(h, 0.5) / (1.0 if length is None else float(length))


def drawn_in_python(h: Any, _: int) -> Any:
    """Numbers of Python's and NumPy's global generators, as many as the trace has samples."""
    rows = [random.random() for _ in range(h.shape[0])] if h.shape[0] else [random.random()]
    return h * np.random.rand() + sum(rows)


PYTHON = "Python's and NumPy's generators"


DRAWS: dict[str, Callable[[Any, int], Any]] = {
    "dropout": lambda h, _: tf.nn.dropout(h, 0.5),
    "seeded dropout": lambda h, seed: tf.nn.dropout(h, 0.5, seed=seed),
    "uniform": lambda h, _: h * tf.random.uniform(tf.shape(h), dtype=h.dtype),
    "normal": lambda h, _: h + tf.random.normal(tf.shape(h)[:2], dtype=h.dtype)[..., None],
    "truncated": lambda h, _: h + tf.random.truncated_normal(tf.shape(h), dtype=h.dtype),
    "fixed": lambda h, _: h + tf.random.normal([WIDTH], dtype=h.dtype),
    "whole numbers": lambda h, _: (
        h * tf.cast(tf.random.uniform(tf.shape(h), 0, 9, tf.int32), h.dtype)
    ),
    "gamma": lambda h, _: h * tf.random.gamma(tf.shape(h)[:1], 2.0, dtype=h.dtype)[:, None, None],
    "shuffle": lambda h, _: h + tf.random.shuffle(h),
    "condition": in_condition,
    "loop": in_loop,
    "function": in_function,
    "by size": by_size,
}


FUNCTIONS = ("plain", "signature", "partial signature", "relaxed")


DOORS = ("distribute", "run", "run in a function", "distribute in a function")


@dataclasses.dataclass(frozen=True)
class Program:
    draws: tuple[str, ...]
    function: str
    door: str
    shares: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    dtype: tf.DType
    seed: int

    @classmethod
    def drawn(cls, seed: int) -> Program:
        rng = random.Random(seed)
        lengths = rng.sample(range(2, 9), rng.randint(2, 4))
        sizes = [(8, rng.choice(lengths)) for _ in range(STEPS)]
        sizes[-1] = (rng.choice([3, 5, 8]), sizes[-1][1])
        return cls(
            draws=tuple(rng.sample(sorted(DRAWS), rng.randint(1, 3))),
            function=rng.choice(FUNCTIONS),
            door=rng.choice(DOORS),
            shares=rng.choice(SHARES),
            sizes=tuple(sizes),
            dtype=rng.choice([tf.float32, tf.float64]),
            seed=seed,
        )

    def options(self) -> dict[str, Any]:
        if self.function == "relaxed":
            return {"reduce_retracing": True}
        if "signature" not in self.function:
            return {}
        size = 8 if self.function == "partial signature" else None
        if size is not None and self.sizes[-1][0] != size:
            size = None
        spec = tf.TensorSpec([size, None, WIDTH], self.dtype)
        return {"input_signature": [spec, tf.TensorSpec([size], self.dtype)]}

    def run(self, *, is_plain: bool) -> list[float]:
        """Return the losses, and the last weights."""
        tf.random.set_seed(self.seed)
        rng = np.random.default_rng(self.seed)
        start = rng.normal(size=(WIDTH, WIDTH))
        weights = tf.Variable(start, dtype=self.dtype)

        def body(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                hidden = tf.tanh(x @ weights)
                for name in self.draws:
                    hidden = (drawn_in_python if name == PYTHON else DRAWS[name])(hidden, self.seed)
                error = tf.reduce_sum(hidden, [1, 2]) - y
                loss = tf.reduce_mean(tf.square(error)) / 100
            weights.assign_sub(0.02 * tape.gradient(loss, weights))
            return loss

        step = self._through(body, is_plain=is_plain)
        losses = []
        for samples, length in self.sizes:
            x = tf.constant(rng.normal(size=(samples, length, WIDTH)), self.dtype)
            losses.append(float(step(x, tf.constant(rng.normal(size=samples), self.dtype))))
        return [*losses, *weights.numpy().ravel()]

    def _through(self, body: Callable[..., Any], *, is_plain: bool) -> Callable[..., Any]:
        step, options = body, self.options()
        is_inside = self.door.endswith("in a function")
        devices = [f"cpu:{k}" for k in range(len(self.shares))]
        if not is_inside:
            step = tf.function(body, **options)
        called = step
        if not is_plain and "distribute" in self.door:
            called = evener.distribute(step, devices=devices, shares=self.shares)
        elif not is_plain:
            strategy = evener.Strategy(devices=devices, shares=self.shares)
            called = lambda *batch: strategy.run(step, batch)  # noqa: E731
        if not is_inside:
            return called

        def around(x: Any, y: Any) -> Any:
            noise = tf.random.normal([], dtype=x.dtype)
            return called(x + noise, y) + called(x, y) + tf.random.uniform([], dtype=x.dtype)

        return tf.function(around, **options)


def agree(program: Program) -> None:
    expected, found = program.run(is_plain=True), program.run(is_plain=False)
    tolerance = 1e-4 if program.dtype == tf.float32 else 1e-9
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(26))
def test_drawn_programs_draw_the_numbers_of_one_device(seed: int) -> None:
    agree(Program.drawn(seed))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("function", FUNCTIONS[:2])
def test_python_draws_while_a_step_is_traced(door: str, function: str) -> None:
    """Traces that the program would not make draw the same, and leave the generators alone."""
    sizes = ((8, 3), (8, 3), (5, 3), (8, 4), (5, 3))
    program = Program((PYTHON,), function, door, (3, 1), sizes, tf.float64, 1)
    found = []
    for is_plain in (True, False):
        np.random.seed(3)
        random.seed(3)
        found.append([*program.run(is_plain=is_plain), np.random.rand(), random.random()])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)


def test_a_function_that_makes_its_variables_draws_twice() -> None:
    """TensorFlow traces it twice, and runs the second trace."""

    def run(step_of: Callable[[Any], Any]) -> list[float]:
        made: list[Any] = []

        def body(x: Any) -> Any:
            if not made:
                made.append(tf.Variable(2.0))
            return tf.reduce_sum(x * np.random.rand() * made[0])

        np.random.seed(3)
        step = step_of(tf.function(body))
        return [*(float(step(tf.ones([n]))) for n in (4, 4, 3)), np.random.rand()]

    def distributed(step: Any) -> Any:
        return evener.distribute(step, devices=["cpu:0", "cpu:1"])

    np.testing.assert_allclose(run(distributed), run(lambda step: step), rtol=1e-6)


OF_GENERATORS = {
    "normal": lambda g, x: g.normal(tf.shape(x)),
    "whole_numbers": lambda g, x: g.uniform([tf.shape(x)[0]], 0, 1000, dtype=tf.int32),
    "keys": lambda g, x: tf.random.stateless_normal(tf.shape(x), g.make_seeds(1)[:, 0]),
}


@pytest.mark.parametrize("draw", OF_GENERATORS)
@pytest.mark.parametrize("makes_in_scope", [True, False])
def test_a_generator_of_the_scope_draws_the_numbers_of_plain_python(
    draw: str, makes_in_scope: bool
) -> None:
    """Replicas of other strategies add their number to its key; one device has no number."""
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1", "cpu:2"], shares=[2, 0, 3])
    with strategy.scope() if makes_in_scope else contextlib.nullcontext():
        ours = tf.random.Generator.from_seed(5)
    theirs = tf.random.Generator.from_seed(5)
    x = tf.zeros([7, 3])
    step = tf.function(lambda x: strategy.run(OF_GENERATORS[draw], (ours, x)))
    one_device = tf.function(lambda x: OF_GENERATORS[draw](theirs, x))
    for _ in range(2):
        np.testing.assert_array_equal(step(x), one_device(x))
        np.testing.assert_array_equal(ours.state, theirs.state)
    np.testing.assert_array_equal(OF_GENERATORS[draw](ours, x), OF_GENERATORS[draw](theirs, x))


def test_a_generator_of_another_strategy_is_left_alone() -> None:
    evener.Strategy(devices=["cpu:0", "cpu:1"])
    mirrored = tf.distribute.MirroredStrategy(["cpu:1", "cpu:2"])
    with mirrored.scope():
        generator = tf.random.Generator.from_seed(5)
    first, second = mirrored.run(lambda: generator.uniform([2])).values
    assert not np.allclose(first, second)
