"""`evener.pinned_gradients`: gradients on the devices of their forward operations."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from evener.errors import PlacementError
from evener.pinning import colocation

# At import, not in the function: a tape that started earlier has not recorded the devices.
colocation.install()


@tf.autograph.experimental.do_not_convert
def pinned_gradients(
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    *,
    tape: tf.GradientTape | None = None,
    unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
) -> Any:
    """Return gradients, each computed on the device of its forward operation.

    After a call of `evener.pin`, every `tf.GradientTape` places gradients so by itself. This
    function is for loops that do not use it, and for graphs without a tape.

    Args:
        target: The tensor to differentiate, or a nest of tensors, of any shape and a floating or
            complex dtype.
        sources: Variables or tensors, or a nest of them, of such dtypes.
        output_gradients: A gradient for each target, of its shape and dtype; ones by default.
        tape: The tape that recorded the target. Without one, the gradients are those of
            `tf.gradients`, which works inside a `tf.function` only.
        unconnected_gradients: The value for sources that the target does not depend on: None, or
            zeros.

    Returns:
        A gradient for each source, of its shape and dtype, in the structure of the sources.

    Raises:
        PlacementError: PLACE-007 if there is no tape and no graph, PLACE-008 if the tape started
            before evener was imported.

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
    if not colocation.records_devices(tape):
        raise PlacementError(
            "PLACE-008",
            "The tape started before evener could record the devices of operations.",
            why="A tape records the device of an operation when the operation runs. This tape "
            "started before pinned_gradients was imported.",
            fix="Write `from evener import pinned_gradients` at the top of the program.",
        )
    return tape.gradient(target, sources, output_gradients, unconnected_gradients)


def _symbolic(target: Any, sources: Any, output_gradients: Any, unconnected: Any) -> Any:
    if tf.executing_eagerly():
        raise PlacementError(
            "PLACE-007",
            "pinned_gradients was called eagerly without a tape.",
            why="In eager execution, only a tape records how the target was computed.",
            fix="Pass tape=..., the tf.GradientTape of the forward pass, or call this in a "
            "tf.function.",
        )
    flat = [
        getattr(source, "value", source) if _is_keras(source) else source
        for source in tf.nest.flatten(sources)
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
