"""Tracing what a person calls, with nothing changed by it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener import _tf_private
from evener.errors import EvenerError, PlacementError

# What TensorFlow and NumPy say of a tensor that has no value yet.
_EAGER_ONLY = (
    "symbolic",
    "numpy()",
    "'numpy'",
    "NumPy array",
    "in Graph Execution",
    "in graph execution",
    "eager execution",
    "EagerTensor",
    "tf.function only supports singleton tf.Variables",
)


def traced(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """Trace a function, which makes its variables, and return a call that would run it.

    Raises:
        PlacementError: PLACE-031 if it works eagerly only.
    """
    if isinstance(fn, tf.types.experimental.ConcreteFunction):
        return lambda: fn(*args, **kwargs)
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, keras.Model) and getattr(fn, "__name__", "") == "train_step":
        # Keras makes the variables of optimizers and metrics before it traces a step.
        _tf_private.build_for_step(owner, args[0])
    function = fn if _tf_private.is_traced_function(fn) else tf.function(fn)
    try:
        function.get_concrete_function(*args, **kwargs)
    except EvenerError:
        raise
    except Exception as error:
        if any(sign in str(error) for sign in _EAGER_ONLY):
            raise _eager_only(fn, error) from error
        raise
    return lambda: function(*args, **kwargs)


@contextlib.contextmanager
def unchanged_random_state() -> Iterator[None]:
    """Put the random states of Python, NumPy and TensorFlow back, unless variables were made.

    What draws the first values of new variables has to stay drawn: else the next variables
    would begin with the same ones.
    """
    made = False

    def notice(next_creator: Any, **kwargs: Any) -> Any:
        nonlocal made
        made = True
        return next_creator(**kwargs)

    python, numpy = random.getstate(), np.random.get_state()
    seeds = _tf_private.operation_seeds()
    try:
        with tf.variable_creator_scope(notice):
            yield
    finally:
        if not made:
            random.setstate(python)
            np.random.set_state(numpy)
            _tf_private.set_operation_seeds(seeds)


def _eager_only(fn: Any, error: Exception) -> PlacementError:
    name = getattr(fn, "__qualname__", None) or type(fn).__name__
    said = next((line for line in str(error).strip().splitlines()[::-1] if line.strip()), "")
    return PlacementError(
        "PLACE-031",
        f"{name} works eagerly only, so it cannot be audited.",
        why=f"an audit reads the graph of a step. Tracing it: {type(error).__name__}: "
        f"{said.strip()}",
        fix="audit the part that computes, without .numpy(), float(...) and the like, or make a "
        "tf.function of it.",
    )
