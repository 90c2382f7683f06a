"""Variables that are updated alike share one traced update.

Keras traces the update of every variable anew: Adam's is some thirty operations, for a model of
a thousand variables more than all the rest of the step. Of variables of one shape and dtype, the
first one's update becomes a function, which is called for each with its own variable and slots:

      kernel_0, m_0, v_0, gradient_0  --> [ update of (64, 64) ]
      kernel_1, m_1, v_1, gradient_1  --> [ the same           ]

Only for optimizers whose update depends on nothing else. A call runs where its variable lives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private

_optimizers = keras.optimizers
# Their updates read the gradient, the variable, its slots, the step's number, the learning rate.
_KNOWN = frozenset({
    _optimizers.Adadelta, _optimizers.Adagrad, _optimizers.Adam, _optimizers.Adamax,
    _optimizers.AdamW, _optimizers.Lion, _optimizers.RMSprop, _optimizers.SGD,
})  # fmt: skip


@contextlib.contextmanager
def updated_alike(optimizer: Any) -> Iterator[None]:
    """Let an optimizer that is applied inside share updates, if it is one that can.

    Args:
        optimizer: A built Keras optimizer.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if type(inner) not in _KNOWN or tf.executing_eagerly() or "update_step" in vars(inner):
        yield
        return
    vars(inner)["update_step"] = tf.autograph.experimental.do_not_convert(_Updates(inner).update)
    try:
        yield
    finally:
        del vars(inner)["update_step"]


class _Updates:
    """The updates of one optimizer in one step.

    Args:
        optimizer: One of those that are known.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        # Not `iterations`: with accumulation, that is computed.
        self._iterations: keras.Variable = optimizer._iterations
        self._original: Callable[..., None] = optimizer.update_step
        # By the kind of variable: its function, and what that captures, as slots of a variable.
        self._functions: dict[Hashable, tuple[Any, list[int]] | None] = {}
        self._values: tuple[tf.Graph, tf.Tensor, tf.Tensor] | None = None

    def update(self, gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        """Update one variable; called by Keras in place of ``update_step``."""
        if not isinstance(gradient, tf.Tensor) or gradient.shape != variable.shape:
            self._original(gradient, variable, learning_rate)
            return
        rate, step = self._read(learning_rate)
        key = (tuple(variable.shape), variable.dtype, gradient.dtype, rate.dtype)
        if key not in self._functions:
            self._functions[key] = self._trace(gradient, variable, rate)
        made = self._functions[key]
        if made is None:
            self._original(gradient, variable, learning_rate)
            return
        function, places = made
        handles = self._handles(variable)
        given = [gradient, rate, step]
        _tf_private.call_with_captures(function, given, [handles[k] for k in places])

    def _read(self, learning_rate: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the learning rate and the number of the step, read once in a graph."""
        graph = tf.compat.v1.get_default_graph()
        if self._values is None or self._values[0] is not graph:
            both = [tf.convert_to_tensor(v) for v in (learning_rate, self._iterations)]
            self._values = graph, both[0], both[1]
        return self._values[1:]

    def _trace(
        self, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor
    ) -> tuple[Any, list[int]] | None:
        """Return the update of a variable, or None if it needs more than a variable's own."""
        iterations = self._iterations

        def update(gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
            # The number of the step is read once, where it lives, not once for every variable.
            with keras.StatelessScope(state_mapping=[(iterations, step)]):
                self._original(gradient, variable, learning_rate)

        specs = [
            tf.TensorSpec(variable.shape, gradient.dtype),
            tf.TensorSpec([], rate.dtype),
            tf.TensorSpec([], iterations.dtype),
        ]
        with tf.init_scope(), tf.device(None):
            function = tf.function(
                update, autograph=False, experimental_attributes={"_noinline": True}
            ).get_concrete_function(*specs)
            places = {id(handle): k for k, handle in enumerate(self._handles(variable))}
        captured = [places.get(id(handle)) for handle in function.captured_inputs]
        found = [place for place in captured if place is not None]
        return (function, found) if len(found) == len(captured) else None

    def _handles(self, variable: tf.Variable) -> list[Any]:
        """Return the handles of a variable and of its slots, in the same order for each."""
        position = self._optimizer._get_variable_index(variable)
        number = len(self._optimizer._trainable_variables)
        handles = [variable.handle]
        for slots in vars(self._optimizer).values():
            if isinstance(slots, list) and len(slots) == number:
                slot = slots[position]
                if isinstance(slot, keras.Variable):
                    handles.append(slot.value.handle)
        return handles
