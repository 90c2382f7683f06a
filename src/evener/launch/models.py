"""Keras models that are made outside of any scope train on all devices.

The script does not run inside ``strategy.scope()``: a scope holds in one thread, and until
``keras.utils.clear_session``. Only what is made gets what a scope would give it: a variable its
owner, a model its strategy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine import Strategy
from evener.launch.notes import Notes
from evener.launch.place import own_place
from evener.launch.replace import instead_of


def adopt_models(strategy: Strategy, notes: Notes) -> None:
    """Let Keras models and variables belong to a strategy, if they are made where there is none.

    Args:
        strategy: Whose they become.
        notes: Where it is told.
    """

    def create(next_creator: Any, **kwargs: Any) -> tf.Variable:
        return strategy.extended._create_variable(next_creator, **kwargs)

    def owned() -> contextlib.AbstractContextManager[Any]:
        if tf.distribute.has_strategy():
            return contextlib.nullcontext()
        return tf.variable_creator_scope(create)

    _tf_private.around_new_variables(owned)
    keras.Model.__init__ = _adopting(keras.Model.__init__, strategy, notes)


def _adopting(
    original: Callable[..., None], strategy: Strategy, notes: Notes
) -> Callable[..., None]:
    """Return a replacement for the making of a model."""
    where = f"in an evener scope, on {', '.join(strategy.plan.device_names)}"
    told = False

    @instead_of(original)
    def __init__(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        nonlocal told
        if tf.distribute.has_strategy():
            original(self, *args, **kwargs)
            return
        if not told:
            told = True
            notes.tell(f"Keras models are made {where}", own_place())
        with strategy.scope():
            original(self, *args, **kwargs)

    return __init__
