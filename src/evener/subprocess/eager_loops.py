"""Detection of a training step that a loop takes eagerly, without a Keras optimizer.

A step is taken if a variable has another value when its gradient is next asked for. Gradients
alone do not train.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.optimizers import AUDITED_UPDATES
from evener._tf_private.patches import Patch
from evener.run.replace import instead_of
from evener.run.user_line import callers, user_line

_GRADIENTS = Patch(
    "gradients of audited programs",
    "tensorflow:GradientTape.gradient",
    why="A step without a Keras optimizer is known by its gradients.",
    if_it_changes="Audits of such programs find no training step.",
)


# An optimizer that these modules call is part of `fit`.
_TRAINERS = ("keras.src.backend.tensorflow.trainer", "keras.src.trainers")


@contextlib.contextmanager
def stopping_eager_fits(taken: Callable[[str], Any]) -> Iterator[None]:
    """Watch the updates of `fit` with ``run_eagerly``: its first step stops before its update.

    Args:
        taken: Function to call with the source line of the `fit`.
    """
    process = os.getpid()

    def stopping(original: Callable[..., Any]) -> Callable[..., Any]:
        @instead_of(original)
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly() and os.getpid() == process and _is_called_by_fit():
                taken(str(user_line() or ""))
            return original(optimizer, *args, **kwargs)

        return apply

    with AUDITED_UPDATES.applied(stopping):
        yield


def _is_called_by_fit() -> bool:
    return any(str(f.f_globals.get("__name__", "")).startswith(_TRAINERS) for f in callers())


class EagerLoops:
    """Watches the gradients that a program computes eagerly.

    Args:
        taken: Function to call with the source line of the gradients when a step was taken.
    """

    def __init__(self, taken: Callable[[str], Any]) -> None:
        self._taken = taken
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._before: dict[str, tuple[tf.Variable, bytes]] = {}
        self._first_line = ""

    @property
    def first_line(self) -> str:
        """Source line of the first eager gradients; empty if there were none."""
        return self._first_line

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Watch every tape, in this process."""
        return _GRADIENTS.applied(self._watched)

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @instead_of(original)
        def gradient(
            tape: tf.GradientTape, target: Any, sources: Any, *more: Any, **options: Any
        ) -> Any:
            if tf.executing_eagerly() and os.getpid() == self._process:
                self._see(sources)
            return original(tape, target, sources, *more, **options)

        return gradient

    def ended(self) -> None:
        """See whether the last gradients were followed by a step: no others come after them."""
        if any(_value(variable) != before for variable, before in self._before.values()):
            self._taken(self._first_line)

    def _see(self, sources: Any) -> None:
        line = str(user_line() or "")
        with self._lock:
            self._first_line = self._first_line or line
            for variable in _variables(sources):
                value = _value(variable)
                _, before = self._before.setdefault(variable._unique_id, (variable, value))
                if value != before:
                    self._taken(line)


def _variables(sources: Any) -> list[tf.Variable]:
    flat = [
        source.value if isinstance(source, keras.Variable) else source
        for source in tf.nest.flatten(sources)
    ]
    mirrored = tf.distribute.DistributedValues
    return [
        value
        for value in flat
        if isinstance(value, tf.Variable) and not isinstance(value, mirrored)
    ]


def _value(variable: tf.Variable) -> bytes:
    # As bytes: NaN is equal to itself.
    return variable.numpy().tobytes()
