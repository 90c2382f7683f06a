"""Keras's models and their trainer: building and compiling, under a strategy of evener too."""

from __future__ import annotations

import contextlib
import functools
import gc
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer


def compile_parts(kind: type[Any]) -> None:
    """Let XLA compile the steps of models of strategies of this kind part by part.

    Errors that say that memory ran out get a note of the strategy's as well.

    Why: Keras compiles the function around `strategy.run`, and XLA compiles for one device. What
    is given to `run` says instead that it is to be compiled.
    If it changes: models with ``jit_compile=True`` are refused with ENG-084.

    Args:
        kind: Has a property ``is_plain``, which tells whether a step runs as without a strategy, a
            method ``explain_exhausted_memory``, and a class method
            ``warn_about_unused_strategies``, called with the name of a model that begins to train
            without any strategy.
    """
    original = TensorFlowTrainer._make_function
    if getattr(original, "_evener_kind", None) is kind:
        return

    @functools.wraps(original)
    def make(model: Any, step_function: Any) -> Any:
        strategy = model._distribute_strategy
        has_strategy = model._distribute_strategy is not None or tf.distribute.has_strategy()
        if not has_strategy and _trains(step_function):
            kind.warn_about_unused_strategies(model.name)
        if type(strategy) is not kind or model.run_eagerly or strategy.is_plain:
            return original(model, step_function)
        if not model.jit_compile:
            return _explaining(strategy, original(model, step_function))
        compiled = tf.function(step_function, jit_compile=True, autograph=False)
        model._jit_compile = False
        try:
            return _explaining(strategy, original(model, compiled))
        finally:
            model._jit_compile = True

    vars(make)["_evener_kind"] = kind
    TensorFlowTrainer._make_function = make


def _trains(step_function: Any) -> bool:
    return getattr(step_function, "__name__", "") == "train_step"


def owns_a_model(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a model of this process was created in the scope of a strategy.

    Keras keeps no list of its models, so all objects are searched: only for a warning.
    """
    return any(
        issubclass(type(found), TensorFlowTrainer)
        # A model that is being made does not have it yet.
        and getattr(found, "_distribute_strategy", None) is strategy
        for found in gc.get_objects()
    )


def _explaining(strategy: Any, function: Any) -> Any:
    """Return the step function of Keras with a note on out-of-memory errors."""

    @functools.wraps(function)
    def call(iterator: Any) -> Any:
        try:
            return function(iterator)
        except tf.errors.ResourceExhaustedError as error:
            strategy.explain_exhausted_memory(error)
            raise

    return call


def build_from_shapes(kind: type[tf.distribute.Strategy]) -> None:
    """Let models of strategies of this kind be built from the shapes of their batches.

    Why: under a strategy Keras takes a batch from the data to build a model, so that the order
    of shuffled data is another one, and a generator loses its first batch. Without a strategy it
    leaves the building to the first step, which TensorFlow then traces twice.
    If it changes: data comes in another order than on one device, or the first step takes twice
    as long to begin.
    """
    original = TensorFlowTrainer._maybe_symbolic_build
    if getattr(original, "_evener_kind", None) is kind:
        return

    @functools.wraps(original)
    def build(model: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        if not isinstance(model._distribute_strategy, kind):
            return original(model, iterator=iterator, data_batch=data_batch)
        is_built = all(layer.built for layer in model._flatten_layers())
        if is_built and iterator is not None and _has_steps_of_keras(model):
            with contextlib.suppress(Exception), model.distribute_strategy.scope():
                # What fails here fails in the step too, which says so as it does on one device.
                model._symbolic_build(data_batch=iterator._distributed_dataset.element_spec)
        return None

    vars(build)["_evener_kind"] = kind
    TensorFlowTrainer._maybe_symbolic_build = build


def _has_steps_of_keras(model: Any) -> bool:
    """Return whether the step of a model consists of Keras's own methods only."""
    names = ("train_step", "test_step", "compute_loss", "compute_metrics", "_symbolic_build")
    return all(getattr(type(model), name) is getattr(keras.Model, name) for name in names)


# Why: a layer may have Keras's trainer and be no `keras.Model`; there is no public name for it.
# If it changes: such models train on one device under `evener run`.
Trainer: Any = TensorFlowTrainer


def model_strategy(model: keras.Model) -> tf.distribute.Strategy | None:
    """Return the strategy in whose scope a model was made, or None."""
    return getattr(model, "_distribute_strategy", None)


def build_for_step(model: keras.Model, batch: Any) -> None:
    """Make what a model makes before its first step: its own, its optimizer's, its metrics'.

    Why: in ``fit``, Keras does so from a batch before it traces the step.
    If it changes: steps of models that were not trained yet cannot be audited.
    """
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=batch)


def build_from_specs(model: Any, batch: Any) -> None:
    """Make all variables of a compiled model, as Keras does before it trains under a strategy.

    What fails here fails in the step too, which says so.

    Why: a step that makes variables while it is traced is traced twice. There is no public way to
    build the metrics.
    If it changes: tracing takes twice as long.

    Args:
        model: The model, compiled.
        batch: A nest of `keras.KerasTensor`, as the model's ``train_step`` is given it.
    """
    with contextlib.suppress(Exception):
        model._symbolic_build(data_batch=batch)
    with contextlib.suppress(Exception):
        if model.built and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
