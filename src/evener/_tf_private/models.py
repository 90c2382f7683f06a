"""Keras's layers, optimizers and trainer, and what changes under a strategy of evener.

Keras treats such a strategy as one device (`patch_keras`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import itertools
import weakref
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.saving import saving_lib
from tensorflow.python.distribute import distribute_lib

from evener._tf_private.functions import let_compiled_functions_follow, shorten_tracebacks
from evener._tf_private.patches import Patch, setting
from evener._tf_private.random_numbers import draw_as_one_device

# Why: a layer may have Keras's trainer and be no `keras.Model`; there is no public name for it.
# If it changes: such models train on one device under `evener run`.
Trainer: Any = TensorFlowTrainer

_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer"
TRAINER_INIT = f"{_TRAINER}.__init__"
"""Target of patches that are told of each new trainer."""

SLOTS_AND_UPDATES = Patch(
    "slots and updates of variables",
    "keras:optimizers.Optimizer.add_variable_from_reference",
    "keras:optimizers.Optimizer.apply",
    "keras:optimizers.LossScaleOptimizer.apply",
    "keras:optimizers.Optimizer._all_reduce_sum_gradients",
    why="A slot is made, and an update runs, on the device of its variable; sums over replicas "
    "pass all gradients through one operation, even of one replica. Keras has no hooks for it.",
    if_it_changes="Slots, updates and gradients are on the first device.",
)
EVALUATIONS = Patch(
    "evaluations of loops that are resumed",
    "keras:Model.evaluate",
    "keras:Model.predict",
    why="They take their batches inside of functions, so a loop that runs again with what its "
    "steps returned has to be told what they returned, as a whole.",
    if_it_changes="`evener run --checkpoint` refuses loops that call them.",
)
EAGER_UPDATES = Patch(
    "updates of scripts and audited programs",
    "keras:optimizers.Optimizer.apply",
    why="A step that nobody traced ends with an update: an audit ends a program there, and a run "
    "says that the step is not divided.",
    if_it_changes="Audits do not find eager steps, and `evener run` does not say that a step runs "
    "on one device.",
)
_FOLLOWING = Patch(
    "strategies of optimizers",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._distribution_strategy",
    why="Keras fixes the strategy when an optimizer is made, and refuses to make its slots under "
    "another; on one device it does not matter where an optimizer is made.",
    if_it_changes='Such optimizers fail with TensorFlow\'s error "Mixing different strategies".',
    is_new=True,
)
_TRAINERS = Patch(
    "trainers under a strategy",
    f"{_TRAINER}._maybe_symbolic_build",
    f"{_TRAINER}._make_function",
    "keras.src.trainers.trainer:Trainer._resolve_auto_jit_compile",
    "keras.src.trainers.trainer:Trainer.compile",
    why="Under a strategy Keras takes a batch from the data to build a model, so that shuffled "
    "data has another order, and a generator loses its first batch. Without a strategy it leaves "
    "the building to the first step, which TensorFlow then traces twice. Keras compiles the "
    "function around `strategy.run`, and XLA compiles for one device: what is given to `run` says "
    'instead that it is to be compiled. Keras turns ``jit_compile="auto"`` off under every '
    'strategy, but on one device a model has it; and it forgets that it was "auto": only then may '
    "a trial of plans run a step without XLA.",
    if_it_changes="Data comes in another order than on one device, or the first step takes twice "
    "as long to begin. Models with ``jit_compile=True`` are refused with ENG-084; others run "
    "without XLA under a strategy, slower and with other random numbers than on one GPU.",
)
_INSISTING: weakref.WeakSet[Any] = weakref.WeakSet()
"""Models whose program says itself whether XLA compiles them."""


def patch_keras(kind: type[Any]) -> None:
    """Let Keras treat strategies of a class as one device. Safe to call again."""
    default = distribute_lib._get_default_strategy()
    name = "_distribution_strategy"

    def get_strategy(optimizer: Any) -> Any:
        if name not in vars(optimizer):
            raise AttributeError(name)  # it is being made
        made_under, now = vars(optimizer)[name], tf.distribute.get_strategy()
        return now if made_under is default and isinstance(now, kind) else made_under

    def set_strategy(optimizer: Any, strategy: Any) -> None:
        vars(optimizer)[name] = strategy

    _FOLLOWING.apply(lambda _: property(get_strategy, set_strategy))
    _TRAINERS.apply_each(
        {
            "_maybe_symbolic_build": functools.partial(_build, kind),
            "_make_function": functools.partial(_make_function, kind),
            "_resolve_auto_jit_compile": functools.partial(_resolve_auto_jit_compile, kind),
            "compile": _compile,
        }
    )
    let_compiled_functions_follow(kind)
    draw_as_one_device(kind)
    shorten_tracebacks()


def _build(kind: type[Any], original, model, iterator=None, data_batch=None) -> Any:
    """Build a model from the shapes of its batches, if all of its steps are Keras's own."""
    if not isinstance(model._distribute_strategy, kind):
        return original(model, iterator=iterator, data_batch=data_batch)
    names = ("train_step", "test_step", "compute_loss", "compute_metrics", "_symbolic_build")
    is_own = all(getattr(type(model), name) is getattr(keras.Model, name) for name in names)
    compiled = (model.optimizer, model._compile_metrics, model._compile_loss)
    lacks_variables = not all(each is None or each.built for each in compiled)
    if is_own and lacks_variables and all(layer.built for layer in model._flatten_layers()):
        with contextlib.suppress(Exception), model.distribute_strategy.scope():
            # What fails here fails in the step too, which says so as on one device.
            if iterator is not None:
                data_batch = iterator._distributed_dataset.element_spec
            model._symbolic_build(data_batch=data_batch)
    return None


def _resolve_auto_jit_compile(kind: type[Any], original: Callable[..., bool], model: Any) -> bool:
    if not isinstance(model._distribute_strategy, kind):
        return original(model)
    with setting(model, _distribute_strategy=None):
        return original(model)


def _compile(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(model, *args, **kwargs)
    given = inspect.signature(original).bind(model, *args, **kwargs).arguments
    if given.get("jit_compile", "auto") == "auto":
        _INSISTING.discard(model)
    else:
        _INSISTING.add(model)
    return result


def _make_function(kind: type[Any], original: Callable[..., Any], model, step_function) -> Any:
    """Make the function that runs steps of a model; XLA compiles what is given to `run`."""
    strategy = model._distribute_strategy
    trains = getattr(step_function, "__name__", "") == "train_step"
    has_strategy = model._distribute_strategy is not None or tf.distribute.has_strategy()
    if trains and not has_strategy:
        kind._warn_about_unused_strategies(model.name)
    if not isinstance(strategy, kind) or model.run_eagerly or strategy.is_plain:
        return original(model, step_function)

    def make() -> Callable[[Any], Any]:
        if not model.jit_compile:
            function = original(model, step_function)
        else:
            compiled = tf.function(step_function, jit_compile=True, autograph=False)
            with setting(model, _jit_compile=False):
                function = original(model, compiled)

        @functools.wraps(function)
        def call(iterator: Any) -> Any:
            try:
                return function(iterator)
            except tf.errors.ResourceExhaustedError as error:
                strategy._explain_exhausted_memory(error)
                raise

        return call

    if strategy.trial is None or not trains:
        return make()
    may_leave_xla = model.jit_compile and model not in _INSISTING
    return _try_plans(model, strategy.trial, make, may_leave_xla=may_leave_xla)


def _try_plans(
    model: Any, trial: Any, make: Callable[[], Callable[[Any], Any]], *, may_leave_xla: bool
) -> Any:
    """Return a training function that has a function of Keras's for each plan of a trial.

    Why: Keras has one training function, which is traced once, and the plan is a part of the trace.
    If it changes: ``fit`` trains by the plan that it began with.
    """
    functions: dict[int, Callable[[Any], Any]] = {}
    is_settled = False

    def run(iterator: Any, number: int) -> Any:
        if number not in functions:
            functions[number] = make()
        return functions[number](iterator)

    def call(iterator: Any) -> Any:
        nonlocal is_settled
        if not trial.choice.is_over:
            return trial.run(
                call,
                functools.partial(run, iterator),
                repeatable=lambda: _repeatable(iterator, model.steps_per_execution, run),
                may_leave_xla=may_leave_xla,
            )
        if not is_settled:
            is_settled = True
            for number in functions.keys() - {trial.choice.current}:
                del functions[number]
            if trial.choice.current != trial.choice.start:
                # They were traced for the plan of the start; Keras makes others when needed.
                model.test_function = model.predict_function = None
        return run(iterator, trial.choice.current)

    return call


def _repeatable(
    iterator: Any, num_batches: int, run: Callable[[Any, int], Any]
) -> Callable[[int], Any] | None:
    """Return a function that runs a step on the next batches, as often as it is called."""
    is_of_data = isinstance(iterator, tf.data.Iterator)
    spec: Any = iterator.element_spec if is_of_data else None
    if is_of_data and not all(isinstance(part, tf.TensorSpec) for part in tf.nest.flatten(spec)):
        return None
    batches = list(itertools.islice(iterator, num_batches))
    if not batches:
        # At the end of the data, the function says so.
        return functools.partial(run, iterator)

    def run_again(number: int) -> Any:
        if not is_of_data:
            return run(iter(batches), number)
        dataset = tf.data.Dataset.from_generator(lambda: batches, output_signature=spec)
        return run(iter(dataset), number)

    return run_again


@contextlib.contextmanager
def recording_layers() -> Generator[dict[str, str]]:
    """Record the layers whose operations are added to the current graph.

    Why: Keras opens a name scope for every call of a layer, and the names of operations begin with
    their scope; so do those of their gradients, after ``gradient_tape/``. But the name of a scope
    is not the path of its layer: a second call gets a number. There is no public hook.
    If it changes: operations cannot be assigned to layers, and the stages of a plan find no layers
    (ENG-042).
    """
    scopes: dict[str, str] = {}

    def record(operation: Any) -> str:
        scope = operation.name.rpartition("/")[0]
        if scope not in scopes:
            _enter(scope, scopes)
        return operation.device

    # Device functions are called for every operation, in nested functions too.
    with tf.compat.v1.get_default_graph().device(record):
        yield scopes


def _enter(scope: str, scopes: dict[str, str]) -> None:
    """Record a name scope and its outer scopes."""
    layers: Any = global_state.get_global_attribute("name_scope_stack") or []
    names = scope.split("/") if scope else []
    depth = len(names)
    for number in range(len(layers), 0, -1):
        while depth and not names[depth - 1].startswith(layers[number - 1].name):
            depth -= 1
        if not depth:
            return
        # The path of the innermost layer, as Keras writes it.
        path: list[str] = []
        for layer in layers[:number]:
            if layer.override_parent is not None:
                path = [name for name in layer.override_parent.split("/") if name]
            path.append(layer.name)
        scopes.setdefault("/".join(names[:depth]), "/".join(path))
        depth -= 1


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """Return a model's layers at every depth, itself included."""
    return list(model._flatten_layers(include_self=True, recursive=True))


def sublayers(layer: keras.Layer) -> list[keras.Layer]:
    """Return the layers that a layer holds itself, not those inside them.

    Why: the path of a layer leads through the layers that hold it, and stages are named by
    paths. If it changes: stages and recomputation find no layers inside of layers.
    """
    return list(getattr(layer, "_layers", ()))


def own_variables(layer: keras.Layer) -> list[Any]:
    """Return the Keras variables that a layer holds itself, with the seeds of its generators.

    Why: a layer may be pinned away from the layers inside it, and the public list joins all.
    If it changes: built layers cannot be pinned.
    """
    seeds = [generator.state for generator in layer._seed_generators]
    return [*layer._trainable_variables, *layer._non_trainable_variables, *seeds]


def owns_a_model(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a model of this process was created in the scope of a strategy."""
    return any(
        issubclass(type(found), TensorFlowTrainer)
        # A model that is being made does not have it yet.
        and getattr(found, "_distribute_strategy", None) is strategy
        for found in gc.get_objects()
    )


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
    build the metrics. If it changes: tracing takes twice as long.
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
    """
    saving_lib.save_weights_only(model, path, objects_to_skip=[getattr(model, "optimizer", None)])
