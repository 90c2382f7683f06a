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
Column = Callable[[np.random.Generator, int], np.ndarray]


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
Loss = Callable[..., Any]
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
    return rng.normal(size=shape).astype("float32")


def uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(size=shape).astype("float32")


def integers(rng: np.random.Generator, high: int, *shape: int) -> np.ndarray:
    """Return whole numbers from zero up to but without ``high``."""
    return rng.integers(high, size=shape).astype("int32")


def normals(*shape: int) -> Column:
    return lambda rng, n: normal(rng, n, *shape)


def whole(high: int, *shape: int) -> Column:
    return lambda rng, n: integers(rng, high, n, *shape)


def columns(*made: Column) -> Batch:
    """Return what makes an argument of each column, with a row for each sample."""
    return lambda rng, n: tuple(column(rng, n) for column in made)


def to_regress(features: int = 6, outputs: int = 4) -> Batch:
    return columns(normals(features), normals(outputs))


def to_classify(features: int = 6, classes: int = 5) -> Batch:
    return columns(normals(features), whole(classes))


def of_shape(*shape: int) -> Batch:
    return columns(normals(*shape))


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


def trained(model: Any, optimizer: Callable[[Any], Any] = sgd) -> tuple[Any, Any]:
    """Return a model, and an optimizer of its weights."""
    return model, optimizer(model.trainable_variables)


def state(*holders: Any) -> list[Any]:
    """Return all variables of models, optimizers, metrics, seeds, and of variables themselves."""
    found: list[Any] = []
    for holder in holders:
        if isinstance(holder, tf.Variable | keras.Variable):
            found.append(holder)
        else:
            found += holder.variables if hasattr(holder, "variables") else [holder.state]
    return found


def squared(model: Any, x: Any, y: Any) -> Any:
    """Return the mean square of the errors."""
    return tf.reduce_mean(tf.square(y - model(x, training=True)))


def first_of(results: Any) -> Any:
    if isinstance(results, dict):
        return next(iter(results.values()))
    return results[0] if isinstance(results, tuple) else results


def learn(
    loss_of: Callable[..., Any],
    models: Any,
    batch: Batch,
    *,
    optimizer: Callable[[Any], Any] = sgd,
    extra: Sequence[Any] = (),
    **settings: Any,
) -> BuiltStep:
    """Return the plainest step: one tape, one optimizer, and what ``loss_of`` gives is returned.

    That is the loss, or a tuple or a dictionary that begins with it. ``models`` is a model, or
    several, with variables among them.
    """
    models = models if isinstance(models, tuple) else (models,)
    weights = [v for m in models for v in getattr(m, "trainable_variables", [m])]
    made = optimizer(weights)

    def step(*arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            results = loss_of(*arguments)
            loss = first_of(results)
        made.apply(tape.gradient(loss, weights), weights)
        return results

    return BuiltStep(step=step, batch=batch, variables=state(*models, made, *extra), **settings)


def learned(
    name: str, batch: Batch, parts: Callable[[], Any], **settings: Any
) -> Callable[[Loss], Loss]:
    """Register the plainest step with a loss of parts and of a batch; see `learn`.

    ``parts`` makes models that are trained, and what else the step changes.
    """

    def add(loss_of: Loss) -> Loss:
        @case(name)
        def build() -> BuiltStep:
            made = as_tuple(parts())
            models = tuple(part for part in made if is_trained(part))
            extra = [part for part in made if not is_trained(part)]

            def of_batch(*arguments: Any) -> Any:
                return loss_of(*made, *arguments)

            return learn(of_batch, models, batch, extra=extra, **settings)

        return loss_of

    return add


def written(
    name: str, batch: Batch, parts: Callable[[], Any], **settings: Any
) -> Callable[[Loss], Loss]:
    """Register a step, as a function of its parts, which hold all state, and of a batch."""

    def add(function: Loss) -> Loss:
        @case(name)
        def build() -> BuiltStep:
            made = as_tuple(parts())

            def step(*arguments: Any) -> Any:
                return function(*made, *arguments)

            return BuiltStep(step=step, batch=batch, variables=state(*made), **settings)

        return function

    return add


def as_tuple(parts: Any) -> tuple[Any, ...]:
    return parts if isinstance(parts, tuple) else (parts,)


def is_trained(part: Any) -> bool:
    if isinstance(part, tf.Variable | keras.Variable):
        return bool(part.trainable)
    return hasattr(part, "trainable_variables")
