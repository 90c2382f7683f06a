"""Steps of the corpus: their type, the table of all of them, and parts that builders share."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SEED = 20
Batch = Callable[[np.random.Generator, int], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltStep:
    """A step with its state, ready to run.

    Attributes:
        step: Called with the arguments that `batch` makes; not a `tf.function` yet.
        batch: Makes the arguments for so many samples.
        variables: All state that the step changes or that should be compared.
        sizes: Samples of the successive steps; the last are partial batches.
        in_axes: Batch axes as in `jax.vmap`, where the batch cannot be found by itself.
        tolerance: The largest relative difference that rounding may make.
        stateful_random: Whether the step draws from TensorFlow's stateful generators, whose
            numbers depend on the operations in the graph.
        references: Most runs on one device until the results agree: TensorFlow by itself,
            without evener, gives other numbers in some runs of some steps.
        same_bits: Whether two traces round alike; the order in which a tape adds up gradients
            of gradients is not fixed.
    """

    step: Callable[..., Any]
    batch: Batch
    variables: Sequence[tf.Variable | keras.Variable]
    sizes: tuple[int, ...] = (24, 24, 9, 24, 3)
    in_axes: Any = None
    tolerance: float = 1e-5
    stateful_random: bool = False
    references: int = 2
    same_bits: bool = True


Build = Callable[[], BuiltStep]
CASES: dict[str, Build] = {}
_WITHOUT_DEPENDENCY_OPTIMIZATION: set[str] = set()


def case(name: str, *, dependency_optimization: bool = True) -> Callable[[Build], Build]:
    """Register a builder under ``group/name``; it always builds from the same seed."""

    def add(build: Build) -> Build:
        if name in CASES:
            raise ValueError(f"two cases are named {name}")

        @functools.wraps(build)
        def from_seed() -> BuiltStep:
            keras.utils.set_random_seed(SEED)
            return build()

        CASES[name] = from_seed
        if not dependency_optimization:
            _WITHOUT_DEPENDENCY_OPTIMIZATION.add(name)
        return from_seed

    return add


@contextlib.contextmanager
def graph_optimizers_of(name: str) -> Iterator[None]:
    """Run the graphs that are built in the context with the optimizers that a case allows."""
    optimizer = "dependency_optimization"
    if name not in _WITHOUT_DEPENDENCY_OPTIMIZATION:
        yield
        return
    before = tf.config.optimizer.get_experimental_options().get(optimizer, True)
    tf.config.optimizer.set_experimental_options({optimizer: False})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({optimizer: before})


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return normally distributed numbers."""
    return rng.normal(size=shape).astype("float32")


def uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return numbers between zero and one."""
    return rng.uniform(size=shape).astype("float32")


def integers(rng: np.random.Generator, high: int, *shape: int) -> np.ndarray:
    """Return whole numbers from zero up to but without ``high``."""
    return rng.integers(high, size=shape).astype("int32")


def to_regress(features: int = 6, outputs: int = 4) -> Batch:
    """Return what makes samples and random targets."""

    def batch(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        return normal(rng, n, features), normal(rng, n, outputs)

    return batch


def to_classify(features: int = 6, classes: int = 5) -> Batch:
    """Return what makes samples and random labels."""

    def batch(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        return normal(rng, n, features), integers(rng, classes, n)

    return batch


def of_shape(*shape: int) -> Batch:
    """Return what makes samples of a shape, and nothing else."""

    def batch(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        return (normal(rng, n, *shape),)

    return batch


def mlp(
    *widths: int, activation: str = "tanh", last_bias: bool = True, **settings: Any
) -> keras.Sequential:
    """Return dense layers of these widths; the first is the input's, the last is linear.

    A last bias that the loss does not depend on has a gradient of rounding errors alone: such
    steps go without.
    """
    stack: list[Any] = [keras.Input((widths[0],))]
    stack += [layers.Dense(width, activation=activation, **settings) for width in widths[1:-1]]
    return keras.Sequential([*stack, layers.Dense(widths[-1], use_bias=last_bias, **settings)])


def sgd(variables: Sequence[Any], learning_rate: float = 0.1, **settings: Any) -> Any:
    """Return a built SGD."""
    optimizer = keras.optimizers.SGD(learning_rate, **settings)
    optimizer.build(variables)
    return optimizer


def adam(variables: Sequence[Any], learning_rate: float = 0.02, **settings: Any) -> Any:
    """Return a built Adam with an epsilon that does not magnify rounding."""
    optimizer = keras.optimizers.Adam(learning_rate, epsilon=1e-3, **settings)
    optimizer.build(variables)
    return optimizer


def state(*holders: Any) -> list[Any]:
    """Return all variables of models, optimizers, metrics and of variables themselves."""
    found: list[Any] = []
    for holder in holders:
        own = [holder] if isinstance(holder, tf.Variable | keras.Variable) else holder.variables
        found += own
    return found


def learn(
    loss_of: Callable[..., Any],
    model: Any,
    batch: Batch,
    *,
    optimizer: Any = None,
    extra: Sequence[Any] = (),
    **settings: Any,
) -> BuiltStep:
    """Return the plainest step: one tape, one optimizer, and the loss is returned."""
    weights = model.trainable_variables
    optimizer = optimizer or sgd(weights)

    def step(*arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(*arguments)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return BuiltStep(step=step, batch=batch, variables=state(model, optimizer, *extra), **settings)
