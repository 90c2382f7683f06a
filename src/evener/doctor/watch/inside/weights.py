"""Trainable variables that no step has changed."""

from __future__ import annotations

import gc
import hashlib
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener.doctor.watch.inside.events import Events


class Weights:
    """Compares all trainable variables after the first step with those after the last.

    Digests are kept, not values. What no step changes counts only if the same model or layer
    has something that did change: others may be there for something else.

    Args:
        events: Where it is told.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._digests: dict[int, tuple[weakref.ref[Any], bytes]] = {}

    def remember(self) -> None:
        """Take note of the variables of everything that is alive."""
        for owner in _owners():
            for variable in _trainable(owner):
                if id(variable) not in self._digests:
                    self._digests[id(variable)] = (weakref.ref(variable), _digest(variable))

    def tell(self) -> None:
        """Tell which of them are as they were."""
        changed: dict[int, bool] = {}
        unchanged: dict[str, None] = {}
        for owner in _owners():
            variables = [one for one in _trainable(owner) if self._is_known(one)]
            for variable in variables:
                if id(variable) not in changed:
                    before = self._digests[id(variable)][1]
                    changed[id(variable)] = _digest(variable) != before
            if any(changed[id(one)] for one in variables):
                unchanged.update({_path(one): None for one in variables if not changed[id(one)]})
        self._events.tell("untrained", paths=list(unchanged))

    def _is_known(self, variable: Any) -> bool:
        found = self._digests.get(id(variable))
        return found is not None and found[0]() is variable


def _owners() -> list[Any]:
    """Return all layers, models and modules that are alive."""
    kinds = (keras.Layer, tf.Module)
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]


def _trainable(owner: Any) -> list[Any]:
    # A tf.Variable is no module; a model that is not built yet has no variables.
    return list(getattr(owner, "trainable_variables", None) or ())


def _digest(variable: Any) -> bytes:
    value = np.ascontiguousarray(np.asarray(variable.numpy()))
    return hashlib.blake2b(value.view(np.uint8).data, digest_size=16).digest()


def _path(variable: Any) -> str:
    return getattr(variable, "path", None) or variable.name
