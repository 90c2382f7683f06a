"""Shapes of the training data of a compiled Keras model, as far as the model knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf


def input_specs(model: keras.Model) -> Any:
    """Return the input of a model for one sample, a nest of `tf.TensorSpec`; None if unknown.

    Functional models, and models built from an input, know it.

    Args:
        model: Keras model.
    """
    given: Any = getattr(model, "inputs", None)
    if not given:
        return None
    if isinstance(model, keras.Sequential) or len(given) == 1:
        # Keras also accepts the tensor itself instead of a nest with one tensor.
        return _spec(given[0])
    structure: Any = model.input
    return keras.tree.map_structure(_spec, structure)


def target_specs(model: keras.Model) -> Any:
    """Return the targets of a compiled model for one sample.

    Sparse losses take a class number for each row of the output, all others a value for each
    element.

    Args:
        model: Compiled Keras model with known outputs.

    Returns:
        A nest of `tf.TensorSpec` like the outputs of the model; None if it has no loss for them.
    """
    compiled: Any = model
    outputs = compiled.outputs
    if compiled.loss is None or not outputs:
        return None
    losses = _losses(compiled.loss, compiled)
    targets = [_target(output, loss) for output, loss in zip(outputs, losses, strict=True)]
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
