"""Keras's models and their trainer: building and compiling, under a strategy of evener too."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.saving import saving_lib

from evener._tf_private.patches import Patch
from evener._tf_private.tried_fits import tried_function

# Why: a layer may have Keras's trainer and be no `keras.Model`; there is no public name for it.
# If it changes: such models train on one device under `evener run`.
Trainer: Any = TensorFlowTrainer

_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer"
TRAINER_INIT = f"{_TRAINER}.__init__"
"""Target of patches that are told of each new trainer."""

_STEPS = Patch(
    "steps of models",
    f"{_TRAINER}._make_function",
    why="Keras compiles the function around `strategy.run`, and XLA compiles for one device. What "
    "is given to `run` says instead that it is to be compiled.",
    if_it_changes="Models with ``jit_compile=True`` are refused with ENG-084.",
)
_AUTOMATIC_XLA = Patch(
    "automatic XLA of models",
    "keras.src.trainers.trainer:Trainer._resolve_auto_jit_compile",
    why='Keras turns ``jit_compile="auto"`` off under every strategy. A model under evener takes '
    "the kernels, and draws the random numbers, that it has on one device.",
    if_it_changes='With ``jit_compile="auto"`` models on GPUs run without XLA under a strategy: '
    "slower, and with other random numbers than on one GPU.",
)
_CHOICE = Patch(
    "choice of XLA",
    "keras.src.trainers.trainer:Trainer.compile",
    why='Keras keeps what ``jit_compile="auto"`` led to, and not that it was "auto". Only where '
    "the program leaves the choice to the machine may a trial of plans run a step without XLA.",
    if_it_changes="`--plan auto` may run a model without XLA whose program insists on it.",
)
_INSISTING: weakref.WeakSet[Any] = weakref.WeakSet()
"""Models whose program says itself whether XLA compiles them."""

_BUILDING = Patch(
    "building of models",
    f"{_TRAINER}._maybe_symbolic_build",
    why="Under a strategy Keras takes a batch from the data to build a model, so that shuffled "
    "data has another order, and a generator loses its first batch. Without a strategy it leaves "
    "the building to the first step, which TensorFlow then traces twice.",
    if_it_changes="Data comes in another order than on one device, or the first step takes twice "
    "as long to begin.",
)


def compile_parts(kind: type[Any]) -> None:
    """Let XLA compile the steps of models of strategies of this kind part by part.

    Errors that say that memory ran out get a note of the strategy's as well.

    Args:
        kind: Class of strategies. It has a property ``is_plain``, which tells whether a step runs
            as without a strategy, a property ``trial`` (a `tried_fits.Trial` or None), a method
            ``_explain_exhausted_memory``, and a class method
            ``_warn_about_unused_strategies``, called with the name of a model that begins to train
            without any strategy.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(model: Any, step_function: Any) -> Any:
            strategy = model._distribute_strategy
            has_strategy = model._distribute_strategy is not None or tf.distribute.has_strategy()
            if not has_strategy and _trains(step_function):
                kind._warn_about_unused_strategies(model.name)
            if not isinstance(strategy, kind) or model.run_eagerly or strategy.is_plain:
                return original(model, step_function)
            if strategy.trial is not None and _trains(step_function):
                make_once = functools.partial(make_for_parts, strategy, model, step_function)
                may_leave_xla = model.jit_compile and model not in _INSISTING
                return tried_function(model, strategy.trial, make_once, may_leave_xla=may_leave_xla)
            return make_for_parts(strategy, model, step_function)

        def make_for_parts(strategy: Any, model: Any, step_function: Any) -> Any:
            if not model.jit_compile:
                return _explaining(strategy, original(model, step_function))
            compiled = tf.function(step_function, jit_compile=True, autograph=False)
            model._jit_compile = False
            try:
                return _explaining(strategy, original(model, compiled))
            finally:
                model._jit_compile = True

        return make

    def wrap_automatic(original: Callable[..., bool]) -> Callable[..., bool]:
        @functools.wraps(original)
        def resolve(model: Any) -> bool:
            strategy = model._distribute_strategy
            if not isinstance(strategy, kind):
                return original(model)
            model._distribute_strategy = None
            try:
                return original(model)
            finally:
                model._distribute_strategy = strategy

        return resolve

    def wrap_choice(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def compile(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            given = signature.bind(model, *args, **kwargs).arguments
            if given.get("jit_compile", "auto") == "auto":
                _INSISTING.discard(model)
            else:
                _INSISTING.add(model)
            return result

        return compile

    _STEPS.apply(wrap)
    _AUTOMATIC_XLA.apply(wrap_automatic)
    _CHOICE.apply(wrap_choice)


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
            strategy._explain_exhausted_memory(error)
            raise

    return call


def build_from_shapes(kind: type[tf.distribute.Strategy]) -> None:
    """Let models of strategies of this kind be built from the shapes of their batches."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def build(model: Any, iterator: Any = None, data_batch: Any = None) -> Any:
            if not isinstance(model._distribute_strategy, kind):
                return original(model, iterator=iterator, data_batch=data_batch)
            if _lacks_variables(model) and _has_steps_of_keras(model):
                with contextlib.suppress(Exception), model.distribute_strategy.scope():
                    # What fails here fails in the step too, which says so as on one device.
                    if iterator is not None:
                        data_batch = iterator._distributed_dataset.element_spec
                    model._symbolic_build(data_batch=data_batch)
            return None

        return build

    _BUILDING.apply(wrap)


def _lacks_variables(model: Any) -> bool:
    """Return whether a model has its weights, but not yet those of its optimizer or metrics."""
    compiled = (model.optimizer, model._compile_metrics, model._compile_loss)
    if all(each is None or each.built for each in compiled):
        return False
    return all(layer.built for layer in model._flatten_layers())


def _has_steps_of_keras(model: Any) -> bool:
    """Return whether the step of a model consists of Keras's own methods only."""
    names = ("train_step", "test_step", "compute_loss", "compute_metrics", "_symbolic_build")
    return all(getattr(type(model), name) is getattr(keras.Model, name) for name in names)


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


def save_only_weights(model: keras.Model | None, path: str) -> None:
    """Write the weights of a model as ``model.save_weights`` does, without its optimizer.

    Why: ``save_weights`` writes the optimizer too, twice as many bytes as the weights for Adam.
    If it changes: checkpoints cannot be written.

    Args:
        model: Model that is built.
        path: Path of a file, which ends in ``.weights.h5``.
    """
    optimizer = getattr(model, "optimizer", None)
    saving_lib.save_weights_only(model, path, objects_to_skip=[optimizer])
