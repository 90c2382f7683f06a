"""`evener.pinned_gradients`: gradients on the devices of their forward operations."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from evener import locality
from evener.errors import PlacementError

# Here, not in the function: a tape that is begun before does not know the devices.
locality.install()


@tf.autograph.experimental.do_not_convert
def pinned_gradients(
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    *,
    tape: tf.GradientTape | None = None,
    unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
) -> Any:
    """Return gradients, each computed on the device of the forward operation it belongs to.

    Once `evener.pin` was called, or an `evener.Strategy` made, every `tf.GradientTape` does
    so by itself. This is for loops that use neither, and for graphs without a tape.

    Args:
        target: What is differentiated: a tensor, or a nest of tensors.
        sources: Variables or tensors, or a nest of them.
        output_gradients: A gradient for each target, of its shape; ones by default.
        tape: The tape that has recorded the target. Without one, the gradients are those of
            `tf.gradients`, which needs a `tf.function` around.
        unconnected_gradients: What to return for sources that the target does not depend on:
            None, or zeros.

    Returns:
        Gradients in the structure of the sources.

    Raises:
        PlacementError: PLACE-007 if there is no tape and no graph, PLACE-008 if the tape was
            begun before evener was told that devices matter.

    Example:
        >>> import evener, tensorflow as tf
        >>> with tf.device("cpu:0"):
        ...     weight = tf.Variable(2.0)
        >>> with tf.GradientTape() as tape:
        ...     with tf.device("cpu:0"):
        ...         loss = weight * weight
        >>> float(evener.pinned_gradients(loss, weight, tape=tape))
        4.0
    """
    if tape is None:
        return _symbolic(target, sources, output_gradients, unconnected_gradients)
    if not locality.records_devices(tape):
        raise PlacementError(
            "PLACE-008",
            "The tape was begun before evener was told that devices matter.",
            why="A tape notes the device of an operation when the operation runs.",
            fix="Write `from evener import pinned_gradients` at the top of the program.",
        )
    return tape.gradient(target, sources, output_gradients, unconnected_gradients)


def _symbolic(target: Any, sources: Any, output_gradients: Any, unconnected: Any) -> Any:
    if tf.executing_eagerly():
        raise PlacementError(
            "PLACE-007",
            "There is neither a tape nor a graph to take gradients of.",
            why="Eagerly, only a tape remembers how the target was computed.",
            fix="Give tape=..., the tf.GradientTape around the forward pass, or call this in a "
            "tf.function.",
        )
    flat = [
        getattr(one, "value", one) if _is_keras(one) else one for one in tf.nest.flatten(sources)
    ]
    gradients = tf.gradients(
        tf.nest.flatten(target),
        flat,
        None if output_gradients is None else tf.nest.flatten(output_gradients),
        unconnected_gradients=unconnected,
    )
    return tf.nest.pack_sequence_as(sources, gradients)


def _is_keras(source: Any) -> bool:
    import keras

    return isinstance(source, keras.Variable)
