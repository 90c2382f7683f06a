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

from evener.run.replace import instead_of
from evener.run.user_line import user_line


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

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch every tape, in this process."""
        original = tf.GradientTape.gradient

        @instead_of(original)
        def gradient(
            tape: tf.GradientTape, target: Any, sources: Any, *more: Any, **options: Any
        ) -> Any:
            if tf.executing_eagerly() and os.getpid() == self._process:
                self._see(sources)
            return original(tape, target, sources, *more, **options)

        tf.GradientTape.gradient = gradient
        try:
            yield
        finally:
            tf.GradientTape.gradient = original

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
