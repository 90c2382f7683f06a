"""Keras under a strategy of evener, which it treats as one device."""

from __future__ import annotations

import tensorflow as tf

from evener._tf_private.functions import let_compiled_functions_follow
from evener._tf_private.models import build_from_shapes, compile_parts
from evener._tf_private.optimizers import let_optimizers_follow
from evener._tf_private.random_numbers import draw_as_one_device

PATCHES = {
    "keras.optimizers.Optimizer._distribution_strategy": "where its slots are made",
    "keras.Model._maybe_symbolic_build": "a model is built without taking a batch from the data",
    "keras.Model._make_function": "XLA compiles the parts of a step, and not the step around them; "
    "errors of memory get a note; a model outside of all scopes is noticed",
    "tf.function.__call__": "a compiled function runs where its variables are, if XLA refuses it",
    "tf.random.Generator._preprocess_key": "a generator of the scope draws as outside of it",
    "keras.layers.BatchNormalization.call": 'batch_norm="per_device"; only once it was asked for',
}


def patch_keras(kind: type[tf.distribute.Strategy]) -> None:
    """Let Keras treat strategies of a class as one device. Safe to call again."""
    let_optimizers_follow(kind)
    build_from_shapes(kind)
    compile_parts(kind)
    let_compiled_functions_follow(kind)
    draw_as_one_device(kind)
