"""The shapes of the data that a compiled Keras model trains on, as far as the model tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf


def input_specs(model: keras.Model) -> Any:
    """Return what a model is given for one sample, a nest of `tf.TensorSpec`; None if unknown.

    A model of layers, or one that was built from an input, knows it.

    Args:
        model: The model.
    """
    given: Any = getattr(model, "inputs", None)
    if not given:
        return None
    if isinstance(model, keras.Sequential) or len(given) == 1:
        # A nest of one tensor may also be given as the tensor.
        return _spec(given[0])
    structure: Any = model.input
    return keras.tree.map_structure(_spec, structure)


def target_specs(model: keras.Model) -> Any:
    """Return what the losses of a compiled model compare its results with, for one sample.

    Sparse losses take the number of a class for each row of results, all others a value for each
    result.

    Args:
        model: The model, compiled, with known outputs.

    Returns:
        A nest of `tf.TensorSpec` like the outputs of the model; None if it has no loss for them.
    """
    compiled: Any = model
    outputs = compiled.outputs
    if compiled.loss is None or not outputs:
        return None
    losses = _losses(compiled.loss, compiled)
    targets = [_target(one, loss) for one, loss in zip(outputs, losses, strict=True)]
    if len(targets) == 1:
        return targets[0]
    return keras.tree.pack_sequence_as(compiled.output, targets)


def _spec(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape[1:], tensor.dtype)


def _losses(loss: Any, model: Any) -> Sequence[Any]:
    """Return the loss of each output."""
    if isinstance(loss, Mapping):
        return [loss.get(name) for name in model.output_names]
    if isinstance(loss, list | tuple):
        return loss
    return [loss] * len(model.outputs)


def _target(output: Any, loss: Any) -> tf.TensorSpec:
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    if "sparse" in name.lower():
        return tf.TensorSpec(output.shape[1:-1], tf.int32)
    return tf.TensorSpec(output.shape[1:], tf.float32)
