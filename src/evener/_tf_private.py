"""The only file that may import ``tensorflow.python.*`` or reach into Keras's private parts.

Each function says why it is needed and what breaks if TensorFlow or Keras changes it.
``tests/unit/engine/test_tf_private.py`` holds a test for each that would tell.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope as _stateless_scope
from tensorflow.python.distribute import distribute_lib, distribute_utils, mirrored_run, values
from tensorflow.python.eager import context as eager_context


def run_in_lockstep(strategy: tf.distribute.Strategy, fn: Callable[..., Any]) -> Any:
    """Call ``fn()`` once per replica, in threads that wait for each other at every merge.

    Why: layers that talk across replicas in the middle of the forward pass need it, and
    TensorFlow's own runner keeps the name scopes, control dependencies and summaries right.
    The strategy's cross-replica context is entered from within another replica context,
    which its public ``scope()`` refuses.
    If it changes: models with ``BatchNormalization(synchronized=True)`` do not trace.
    """
    distribute_lib._push_per_thread_mode(distribute_lib._CrossReplicaThreadMode(strategy))
    try:
        return mirrored_run.call_for_each_replica(strategy, fn, (), {})
    finally:
        distribute_lib._pop_per_thread_mode()


def local_values(value: Any) -> tuple[Any, ...]:
    """Return the values of all replicas of a distributed value, in the order of replicas."""
    if isinstance(value, values.DistributedValues):
        return tuple(value.values)
    return (value,)


def regroup(per_replica: Sequence[Any]) -> Any:
    """Return nested values of all replicas as one nest of distributed values.

    Why: `tf.distribute` hands them out so, and there is no public constructor that accepts
    values on several logical devices of one process.
    If it changes: reductions in the middle of a forward pass fail.
    """
    return distribute_utils.regroup(tuple(per_replica), always_wrap=True)


def select_replica(index: int, value: Any) -> Any:
    """Return one replica's part of a nest of distributed values."""
    return distribute_utils.select_replica(index, value)


def explicit_device() -> str:
    """Return the device that an enclosing `tf.device` asks for, or an empty string.

    Why: a variable that is made under an explicit device (a pinned layer, or an optimizer's
    slot beside its variable) must stay there, and there is no public getter.
    If it changes: such variables are placed by the owner rule instead.
    """
    if not tf.executing_eagerly():
        return ""
    return eager_context.context().device_name or ""


def keras_variable_being_made(initial_value: Any) -> Any | None:
    """Return the Keras variable for which a `tf.Variable` is being made, if it can be told.

    Why: the owner of a variable is chosen by its path and size before it exists, and
    TensorFlow's creators are only given the initial value, a closure over the Keras
    variable. If it changes: owners are chosen by the order of creation alone, and owner
    rules by path match the short name.
    """
    closure = getattr(initial_value, "__closure__", None) or ()
    for cell in closure:
        if isinstance(cell.cell_contents, keras.Variable):
            return cell.cell_contents
    return None


def keras_mask(tensor: Any) -> Any | None:
    """Return the mask that Keras carries along with a tensor.

    Why: losses and metrics count only what the mask lets through, and a mask is lost where
    a tensor is sliced, joined or handed to another function.
    If it changes: masked losses are no longer exact.
    """
    return getattr(tensor, "_keras_mask", None)


def set_keras_mask(tensor: Any, mask: Any) -> None:
    """Attach a mask to a tensor as Keras does. See `keras_mask`."""
    tensor._keras_mask = mask


@contextlib.contextmanager
def losses_replaced(model: keras.Model, wrap: Callable[[int, Any], Any]) -> Iterator[None]:
    """Replace each compiled loss function of a model by ``wrap(index, loss)`` inside.

    Why: Keras resolves the structures of targets, outputs and weights in one long method;
    through it each loss is asked for its numerator and denominator instead of its mean.
    If it changes: no model with a compiled loss trains; `flat_losses` fails first.
    """
    compiled = model._compile_loss
    before = compiled._flat_losses
    compiled._flat_losses = [
        one._replace(loss=wrap(index, one.loss)) for index, one in enumerate(before)
    ]
    try:
        yield
    finally:
        compiled._flat_losses = before


def flat_losses(model: keras.Model) -> list[Any]:
    """Return the compiled losses of a built model: ``loss``, ``loss_weights`` and ``name``."""
    return list(model._compile_loss._flat_losses or ())


def compiled_loss(model: keras.Model) -> Any | None:
    """Return the object that holds the losses given to ``compile``, or None."""
    return model._compile_loss


def compiled_metrics(model: keras.Model) -> Any | None:
    """Return the object that holds the metrics given to ``compile``, or None."""
    return model._compile_metrics


def loss_tracker(model: keras.Model) -> keras.metrics.Mean:
    """Return the metric that is logged as ``loss``."""
    return model._loss_tracker


def model_strategy(model: keras.Model) -> tf.distribute.Strategy | None:
    """Return the strategy in whose scope a model was made, or None."""
    return getattr(model, "_distribute_strategy", None)


def around_new_variables(scope: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    """Make every Keras variable from now on inside a context, in every thread.

    Why: a `tf.variable_creator_scope` around a whole program holds in one thread only, and
    ends with ``keras.utils.clear_session``, which begins a new graph.
    If it changes: variables of an unchanged script have no owner, and its models are refused
    in ``fit``.
    """
    original = keras.Variable._initialize

    @functools.wraps(original)
    def initialize(self: keras.Variable, value: Any) -> None:
        with scope():
            original(self, value)

    keras.Variable._initialize = initialize


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """Return a model's layers at every depth, itself included."""
    return list(model._flatten_layers(include_self=True, recursive=True))


def sublayers(layer: keras.Layer) -> list[keras.Layer]:
    """Return the layers that a layer holds itself, not those inside them.

    Why: the path of a layer leads through the layers that hold it, and stages are named by
    paths. If it changes: stages and recomputation find no layers inside of layers.
    """
    return list(getattr(layer, "_layers", ()))


def run_after(operation: tf.Operation, earlier: Sequence[tf.Operation]) -> None:
    """Let an operation that exists wait for others.

    Why: activations that are computed again must not be so before the backward pass has
    come to them, and only the finished graph tells when that is. There is no public way to
    add a control input to an operation that is there.
    If it changes: recomputation saves no memory within a stage.
    """
    operation._add_control_inputs(list(earlier))


def build_from_spec(model: keras.Model, spec: Any) -> None:
    """Build a model, its losses, metrics and optimizer from the shapes of a batch.

    Why: Keras draws a batch from the data for it, which loses the first batch of a
    generator. If it changes: models that are not built yet fail in ``fit``.
    """
    model._symbolic_build(data_batch=spec)


def step_loop(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return Keras's own loop over the batches of one execution, around another step.

    Why: it is the loop behind ``steps_per_execution``, with its treatment of the last,
    shorter execution and of ``run_eagerly``. The compiler is kept out of it because the
    step runs on several devices; evener compiles each replica's part by itself.
    If it changes: `make_train_function` has to bring a loop of its own.
    """
    jit_compile = model._jit_compile
    model._jit_compile = False
    try:
        return model._make_function(step)
    finally:
        model._jit_compile = jit_compile


@contextlib.contextmanager
def losses_overridden(model: keras.Model, losses: list[tf.Tensor]) -> Iterator[None]:
    """Let ``model.losses`` return the given tensors inside.

    Why: a ``compute_loss`` that a person wrote sums ``self.losses``, which must be those of
    the whole batch. If it changes: such models do not see their added losses.
    """
    before = model._losses_override
    model._losses_override = losses
    try:
        yield
    finally:
        model._losses_override = before


def current_stateless_scope() -> Any | None:
    """Return the innermost `keras.StatelessScope` that is open, or None.

    Why: a scope inside another must see the values that the outer one stands in for, and
    Keras's scopes do not nest. If it changes: losses that read weights, such as those of
    regularised outputs, see the owners' values instead of the borrowed ones.
    """
    return _stateless_scope()


def call_model(model: keras.Model, x: Any, *, training: bool) -> Any:
    """Call a model as Keras's own step does, with ``training`` only where it is accepted."""
    if model._call_has_training_arg:
        return model(x, training=training)
    return model(x)


def element_spec(epoch_iterator: Any) -> Any:
    """Return the spec of the batches that one of Keras's epoch iterators will give.

    Why: a model is built from shapes alone, so that no batch of a generator is lost.
    If it changes: models fail to build in ``fit``.
    """
    return epoch_iterator._distributed_dataset.element_spec


def without_program_order(operation: tf.Operation) -> None:
    """Take an operation out of the order in which a function's stateful operations run.

    Why: reading the clock is stateful, and so is a replica whose function checks something
    (some losses of Keras do). TensorFlow would run them in the order of the program: the
    second replica's beginning after the first one's end.
    If it changes: replicas run one after the other, and take no time or each other's.
    """
    order = getattr(operation.graph, "experimental_acd_manager", None)
    if order is not None:
        order.run_independently(operation)


def adopt_optimizer(
    optimizer: keras.optimizers.Optimizer, strategy: tf.distribute.Strategy
) -> None:
    """Let an optimizer that was made outside a strategy's scope make its slots under it.

    Why: Keras fixes the strategy when an optimizer is made, and refuses to build it under
    another one. If it changes: such optimizers fail in ``fit`` with TensorFlow's error.
    """
    for one in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if one is not None and not one.built:
            one._distribution_strategy = strategy
