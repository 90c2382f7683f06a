"""Keras models that are created outside of any scope belong to the strategy of the run.

The script does not run inside ``strategy.scope()``: a scope holds in one thread, and until
``keras.utils.clear_session``. Instead, a new variable gets an owner and a new model gets the
strategy, as they would in the scope.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.models import TRAINER_INIT
from evener._tf_private.patches import Patch
from evener._tf_private.variables import around_new_variables
from evener.run.notes import Notes
from evener.run.replace import instead_of
from evener.run.user_line import user_line
from evener.strategy import Strategy

_MODELS = Patch(
    "models of scripts",
    "keras:Model.__init__",
    # Of models that are no keras.Model, but a layer with a trainer.
    TRAINER_INIT,
    why="A model belongs to the strategy in whose scope it is made, and scripts have no scope.",
    if_it_changes="Models of unchanged scripts train on one device.",
)


def attach_models(strategy: Strategy, notes: Notes) -> None:
    """Let new Keras models and variables belong to a strategy, if no other strategy is active.

    Args:
        strategy: The strategy.
        notes: Reports the first model.
    """

    def create(next_creator: Any, **kwargs: Any) -> tf.Variable:
        return strategy.extended._create_variable(next_creator, **kwargs)

    def owner_scope() -> contextlib.AbstractContextManager[Any]:
        if tf.distribute.has_strategy():
            return contextlib.nullcontext()
        return tf.variable_creator_scope(create)

    around_new_variables(owner_scope)
    _MODELS.apply(lambda original: init_in_scope(original, strategy, notes))


def init_in_scope(
    original: Callable[..., None], strategy: Strategy, notes: Notes
) -> Callable[..., None]:
    """Return a replacement for the ``__init__`` of a model or a trainer."""
    where = f"in an evener scope, on {', '.join(strategy.plan.device_names)}"
    is_reported = False

    @instead_of(original)
    def __init__(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        nonlocal is_reported
        if tf.distribute.has_strategy():
            original(self, *args, **kwargs)
            return
        if not is_reported:
            is_reported = True
            notes.add(f"Keras models are created {where}", user_line())
        with strategy.scope():
            original(self, *args, **kwargs)

    return __init__
