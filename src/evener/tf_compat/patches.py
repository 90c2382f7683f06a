"""All patches that stay once a strategy was created. Other strategies are not affected.

Tests: ``tests/unit/tf_compat/test_patches.py``.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import weakref
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.ops import stateful_random_ops

_NAME = "_distribution_strategy"
_REFUSED = re.compile("Trying to access resource .* located in device .* from device")
PATCHES = {
    "keras.optimizers.Optimizer._distribution_strategy": "where its slots are made",
    "keras.Model._maybe_symbolic_build": "a model is built without taking a batch from the data",
    "keras.Model._make_function": "XLA compiles the parts of a step, and not the step around them; "
    "errors of memory get a note; a model outside of all scopes is noticed",
    "tf.function.__call__": "a compiled function runs where its variables are, if XLA refuses it",
    "tf.random.Generator._preprocess_key": "a generator of the scope draws as outside of it",
    "keras.layers.BatchNormalization.call": 'batch_norm="per_device"; only once it was asked for',
}
"""The patched functions, and why they are patched; those of models are their trainers'."""


def patch_keras(kind: type[tf.distribute.Strategy]) -> None:
    """Let Keras treat strategies of a class as one device. Safe to call again."""
    let_optimizers_follow(kind)
    build_from_shapes(kind)
    compile_parts(kind)
    let_compiled_functions_follow(kind)
    draw_as_one_device(kind)


def draw_as_one_device(kind: type[tf.distribute.Strategy]) -> None:
    """Let generators that are made in the scope of a strategy of this kind draw as outside of it.

    Why: such a generator adds the number of its replica to its key, in a step, so that replicas
    draw other numbers. Here one replica stands for one device, which adds nothing.
    If it changes: numbers of such a generator are not those of the program without a strategy.
    """
    generator: Any = stateful_random_ops.Generator
    original = generator._preprocess_key
    if getattr(original, "_evener_kind", None) is kind:
        return

    @functools.wraps(original)
    def preprocess_key(self: Any, key: Any) -> Any:
        if isinstance(self._distribution_strategy, kind):
            return key
        return original(self, key)

    vars(preprocess_key).update(_evener_kind=kind)
    generator._preprocess_key = preprocess_key


def let_compiled_functions_follow(kind: type[Any]) -> None:
    """Let a compiled function whose variables are on other devices run by their strategy.

    Why: XLA compiles a `tf.function` with ``jit_compile=True`` for one device, and refuses
    variables of others; so compiled inference of a model would fail outside of ``run``. XLA finds
    it out before anything runs, and has no type of error for it.
    If it changes: such functions fail with TensorFlow's error.

    Args:
        kind: Has a class method ``owning``, called with variables, which returns the strategy of
            one of them or None, and a method ``run_compiled``.
    """
    function_kind: Any = polymorphic_function.Function
    original = function_kind.__call__
    if getattr(original, "_evener_kind", None) is kind:
        return
    following: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @functools.wraps(original)
    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        is_in_replica = (
            tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        )
        if is_in_replica or not tf.executing_eagerly():
            return original(function, *args, **kwargs)
        strategy = following.get(function)
        if strategy is None:
            try:
                return original(function, *args, **kwargs)
            except tf.errors.InvalidArgumentError as error:
                if not _REFUSED.search(str(error)):
                    raise
                concrete = function.get_concrete_function(*args, **kwargs)
                strategy = kind.owning(concrete.variables)
                if strategy is None:
                    raise
            following[function] = strategy
        return strategy.run_compiled(function, args, kwargs)

    vars(call).update(_evener_kind=kind, autograph_info__={"artifact": True})
    function_kind.__call__ = call


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
        issubclass(type(one), TensorFlowTrainer)
        # A model that is being made does not have it yet.
        and getattr(one, "_distribute_strategy", None) is strategy
        for one in gc.get_objects()
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


def let_optimizers_follow(kind: type[tf.distribute.Strategy]) -> None:
    """Let optimizers that were made under no strategy work under one of this kind.

    Safe to call again. Elsewhere nothing changes.

    Why: Keras fixes the strategy when an optimizer is made, and refuses to make its slots under
    another; on one device it does not matter where an optimizer is made.
    If it changes: such optimizers fail with TensorFlow's error "Mixing different strategies".
    """
    if isinstance(vars(TFOptimizer).get(_NAME), property):
        return

    default = distribute_lib._get_default_strategy()

    def get(optimizer: Any) -> Any:
        if _NAME not in vars(optimizer):
            raise AttributeError(_NAME)  # it is being made
        made_under = vars(optimizer)[_NAME]
        now = tf.distribute.get_strategy()
        is_free = made_under is default
        return now if is_free and isinstance(now, kind) else made_under

    def set_(optimizer: Any, strategy: Any) -> None:
        vars(optimizer)[_NAME] = strategy

    setattr(TFOptimizer, _NAME, property(get, set_))
