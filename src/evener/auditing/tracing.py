"""Traces a function for an audit, and restores the random state."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private.functions import is_traced_function
from evener._tf_private.models import build_for_step
from evener._tf_private.random_numbers import operation_seeds, set_operation_seeds
from evener.errors import EvenerError, PlacementError

# Fragments of the errors of TensorFlow and NumPy for a symbolic tensor used as a value.
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
    """Trace a function, which creates its variables, and return a call that would run it.

    Args:
        fn: The function.
        args: Its arguments, of any shape and dtype.
        kwargs: Its keyword arguments.

    Raises:
        PlacementError: PLACE-031 if it cannot be traced.
    """
    if isinstance(fn, tf.types.experimental.ConcreteFunction):
        return lambda: fn(*args, **kwargs)
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, keras.Model) and getattr(fn, "__name__", "") == "train_step":
        # Keras creates the variables of optimizers and metrics before it traces a step.
        build_for_step(owner, args[0])
    function = fn if is_traced_function(fn) else tf.function(fn)
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
    """Restore the random states of Python, NumPy and TensorFlow, unless variables were created.

    The random numbers of initial values must stay drawn: otherwise the next variables would start
    with the same values.
    """
    created = False

    def observe(next_creator: Any, **kwargs: Any) -> Any:
        nonlocal created
        created = True
        return next_creator(**kwargs)

    python, numpy = random.getstate(), np.random.get_state()
    seeds = operation_seeds()
    try:
        with tf.variable_creator_scope(observe):
            yield
    finally:
        if not created:
            random.setstate(python)
            np.random.set_state(numpy)
            set_operation_seeds(seeds)


def _eager_only(fn: Any, error: Exception) -> PlacementError:
    name = getattr(fn, "__qualname__", None) or type(fn).__name__
    said = next((line for line in str(error).strip().splitlines()[::-1] if line.strip()), "")
    return PlacementError(
        "PLACE-031",
        f"{name} cannot be traced, so it cannot be audited.",
        why=f"An audit reads the graph of a step. Tracing raised {type(error).__name__}: "
        f"{said.strip()}",
        fix="Audit the part without .numpy(), float(...) and other reads of values, or make it a "
        "tf.function.",
    )
