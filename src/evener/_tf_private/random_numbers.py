"""Seeds and generators of random numbers, and determinism."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import (
    config,
    random_seed,
)

from evener._tf_private.patches import Patch


def is_deterministic() -> bool:
    """Return whether `tf.config.experimental.enable_op_determinism` was called.

    Why: operations that read the clock fail then, and there is no public getter.
    If it changes: steps on several devices fail where it was called.
    """
    return config.is_op_determinism_enabled()


def operation_seeds() -> Any:
    """Return the state from which TensorFlow draws seeds for eager random operations.

    Why: there is no public getter, and an audit must not change what comes after it.
    If it changes: a program with an audit draws other random numbers than one without.
    """
    # Made at the first call of `tf.random.set_seed`.
    rng = getattr(eager_context.context(), "_rng", None)
    return None if rng is None else rng.getstate()


def set_operation_seeds(state: Any) -> None:
    """Put back what `operation_seeds` returned."""
    if state is not None:
        eager_context.context()._rng.setstate(state)


def num_drawing_operations() -> int:
    """Return how many operations of the graph that is being made have taken a seed by their number.

    Why: such an operation draws by its number in its graph, and there is no public getter.
    If it changes: no step can be called in a function.
    """
    return random_seed._graph_to_seed_dict.get(tf.compat.v1.get_default_graph(), 0)


@contextlib.contextmanager
def counting_from(first: int | None) -> Iterator[None]:
    """Number operations that draw as if they were made in the outer graph, from a number on.

    See `num_drawing_operations`. None numbers them from 0, for a graph of their own.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    numbers = random_seed._graph_to_seed_dict
    if first is not None:
        numbers[graph] = first
    yield
    if first is not None:
        numbers[graph.outer_graph] = numbers[graph]


_DRAWS = Patch(
    "generators of a strategy",
    "tensorflow.python.ops.stateful_random_ops:Generator._preprocess_key",
    why="Such a generator adds the number of its replica to its key, in a step, so that replicas "
    "draw other numbers. Here one replica stands for one device, which adds nothing.",
    if_it_changes="Numbers of such a generator are not those of the program without a strategy.",
)


def draw_as_one_device(kind: type[tf.distribute.Strategy]) -> None:
    """Let generators that are made in the scope of such a strategy draw as outside of it."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def preprocess_key(self: Any, key: Any) -> Any:
            return key if isinstance(self._distribution_strategy, kind) else original(self, key)

        return preprocess_key

    _DRAWS.apply(wrap)
