"""Keras models that are made outside of any scope train on all devices.

The script does not run inside ``strategy.scope()``. There, losses are divided by the number
of replicas and optimizers want to be called by `strategy.run`, so that a custom loop would
train otherwise, or not at all. Only what is made gets what a scope would give it: a variable
its owner, a model its strategy.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from evener.engine import Strategy
from evener.engine.ownership import tf_device
from evener.launch.notes import Notes
from evener.launch.place import own_place

_STEPS = ("train_step", "test_step", "predict_step")


def adopt_models(strategy: Strategy, notes: Notes) -> None:
    """Let Keras models belong to a strategy, if they are made where there is none.

    Args:
        strategy: Whose models they become.
        notes: Where it is told.
    """
    original = keras.Model.__init__
    devices = ", ".join(strategy.replica_devices)

    @functools.wraps(original)
    def __init__(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        if tf.distribute.has_strategy():
            original(self, *args, **kwargs)
            return
        reason = _reason_against(type(self))
        if reason is not None:
            notes.tell(f"{type(self).__name__} {reason}", own_place())
            original(self, *args, **kwargs)
            return
        if not any("evener scope" in note.text for note in notes.told):
            notes.tell(f"Keras models are made in an evener scope, on {devices}", own_place())
        with strategy.scope():
            original(self, *args, **kwargs)

    keras.Model.__init__ = __init__


@contextlib.contextmanager
def owned_variables(strategy: Strategy, *, spread: bool) -> Iterator[None]:
    """Give every variable an owner that is made inside, in this thread, outside of any scope.

    Args:
        strategy: In whose ledger they are entered.
        spread: Whether they go to all devices. A loop that runs on the first device alone
            should find them there, as without evener.
    """
    first = tf_device(strategy.replica_devices[0])

    def create(next_creator: Any, **kwargs: Any) -> tf.Variable:
        if tf.distribute.has_strategy():
            return next_creator(**kwargs)
        if spread:
            return strategy.ledger.create(next_creator, **kwargs)
        with _by_default(first):
            return strategy.ledger.create(next_creator, **kwargs)

    with tf.variable_creator_scope(create):
        yield


def _by_default(device: str) -> contextlib.AbstractContextManager[Any]:
    """Ask for a device, unless one is asked for already."""
    from evener import _tf_private

    return contextlib.nullcontext() if _tf_private.explicit_device() else tf.device(device)


def _reason_against(kind: type[keras.Model]) -> str | None:
    """Return why models of a class are left alone, or None."""
    own = [name for name in _STEPS if getattr(kind, name) is not getattr(keras.Model, name)]
    if own:
        return (
            f"brings its own {' and '.join(own)}, which evener cannot split: it trains on one "
            "device, as without evener"
        )
    if threading.current_thread() is not threading.main_thread():
        return "is made outside of the main thread: it trains on one device, as without evener"
    return None
