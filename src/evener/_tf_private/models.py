"""Keras's layers, optimizers and trainer, and what changes under a strategy of evener.

Keras treats such a strategy as one device.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.saving import saving_lib
from tensorflow.python.distribute import distribute_lib

from evener._tf_private.functions import let_compiled_functions_follow, shorten_tracebacks
from evener._tf_private.patches import Patch
from evener._tf_private.random_numbers import draw_as_one_device

# Layers inside of layers, and the layer to which each operation of a graph belongs.


@contextlib.contextmanager
def recording_layers() -> Iterator[dict[str, str]]:
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
        scopes.setdefault("/".join(names[:depth]), _path(layers[:number]))
        depth -= 1


def _path(layers: Sequence[Any]) -> str:
    """Return the path of the innermost of some nested layers, as Keras writes it."""
    names: list[str] = []
    for layer in layers:
        if layer.override_parent is not None:
            names = [name for name in layer.override_parent.split("/") if name]
        names.append(layer.name)
    return "/".join(names)


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


# Keras's optimizers.

_NAME = "_distribution_strategy"

UPDATES = Patch(
    "updates of variables",
    "keras:optimizers.Optimizer.apply",
    "keras:optimizers.LossScaleOptimizer.apply",
    why="An update runs on the device of its variable. Keras has no hook for it.",
    if_it_changes="Updates run on the first device.",
)
AUDITED_UPDATES = Patch(
    "updates of audited programs",
    "keras:optimizers.Optimizer.apply",
    why="An audit ends a program at its first eager step, which ends with an update.",
    if_it_changes="Audits of eager programs find no training step.",
)
SLOTS = Patch(
    "slots of variables",
    "keras:optimizers.Optimizer.add_variable_from_reference",
    why="A slot is made on the device of its variable. Keras has no hook for it.",
    if_it_changes="Slots are made on the first device.",
)
SUMS = Patch(
    "sums of gradients over replicas",
    "keras:optimizers.Optimizer._all_reduce_sum_gradients",
    why="It passes all gradients through one operation, even where there is nothing to reduce, and "
    "has no public name.",
    if_it_changes="All gradients go through the first device.",
)
_FOLLOWING = Patch(
    "strategies of optimizers",
    f"keras.src.backend.tensorflow.optimizer:TFOptimizer.{_NAME}",
    why="Keras fixes the strategy when an optimizer is made, and refuses to make its slots under "
    "another; on one device it does not matter where an optimizer is made.",
    if_it_changes='Such optimizers fail with TensorFlow\'s error "Mixing different strategies".',
    is_new=True,
)


def let_optimizers_follow(kind: type[tf.distribute.Strategy]) -> None:
    """Let optimizers that were made under no strategy work under strategies of this class."""
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

    _FOLLOWING.apply(lambda _: property(get, set_))


# Training functions of Keras's models while plans are tried: a function for each plan.


class Trial(Protocol):
    """Trial of plans; see `evener.strategy.run_trial`."""

    @property
    def is_over(self) -> bool:
        """Whether the plan is chosen."""
        ...

    @property
    def current(self) -> int:
        """Number of the plan of the next step."""
        ...

    @property
    def start(self) -> int:
        """Number of the first plan."""
        ...

    def run(
        self,
        step: object,
        run: Callable[[int], Any],
        *,
        repeatable: Callable[[], Callable[[int], Any] | None] | None = None,
        may_leave_xla: bool = False,
    ) -> Any:
        """Run a step by the current plan, whose number ``run`` is given."""
        ...


def tried_function(
    model: Any,
    trial: Trial,
    make: Callable[[], Callable[[Any], Any]],
    *,
    may_leave_xla: bool,
) -> Any:
    """Return a training function that has a function of Keras's for each plan.

    Why: Keras has one training function, which is traced once, and the plan is a part of the trace.
    If it changes: ``fit`` trains by the plan that it began with.
    """
    functions: dict[int, Callable[[Any], Any]] = {}
    is_settled = False

    def run(iterator: Any, number: int) -> Any:
        if number not in functions:
            functions[number] = make()
        return functions[number](iterator)

    def settle() -> None:
        nonlocal is_settled
        is_settled = True
        for number in functions.keys() - {trial.current}:
            del functions[number]
        if trial.current != trial.start:
            # They were traced for the plan of the start; Keras makes others when it needs them.
            model.test_function = model.predict_function = None

    def call(iterator: Any) -> Any:
        if trial.is_over:
            if not is_settled:
                settle()
            return run(iterator, trial.current)
        return trial.run(
            call,
            functools.partial(run, iterator),
            repeatable=lambda: _repeatable(iterator, model.steps_per_execution, run),
            may_leave_xla=may_leave_xla,
        )

    return call


def _repeatable(
    iterator: Any, num_batches: int, run: Callable[[Any, int], Any]
) -> Callable[[int], Any] | None:
    """Return a function that runs a step on the next batches, as often as it is called."""
    is_of_data = isinstance(iterator, tf.data.Iterator)
    spec: Any = iterator.element_spec if is_of_data else None
    if not all(isinstance(part, tf.TensorSpec) for part in tf.nest.flatten(spec)) and is_of_data:
        return None
    batches = list(itertools.islice(iterator, num_batches))
    if not batches:
        # At the end of the data, the function says so.
        return functools.partial(run, iterator)

    def again() -> Any:
        if not is_of_data:
            return iter(batches)
        return iter(tf.data.Dataset.from_generator(lambda: batches, output_signature=spec))

    return lambda number: run(again(), number)


# Keras's models and their trainer: building and compiling, under a strategy of evener too.

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
    optimizer = getattr(model, "optimizer", None)
    saving_lib.save_weights_only(model, path, objects_to_skip=[optimizer])


# Keras under a strategy of evener, which it treats as one device.


def patch_keras(kind: type[Any]) -> None:
    """Let Keras treat strategies of a class as one device. Safe to call again."""
    let_optimizers_follow(kind)
    build_from_shapes(kind)
    compile_parts(kind)
    let_compiled_functions_follow(kind)
    draw_as_one_device(kind)
    shorten_tracebacks()
