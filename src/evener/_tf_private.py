"""Private functions of TensorFlow and Keras; only this file and `evener.tf_compat` may use them.

The docstring of each function states why it is needed, and what breaks if TensorFlow or Keras
changes. ``tests/unit/engine/test_tf_private.py`` has a test for each.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
import wrapt  # of TensorFlow
from keras.src.backend.tensorflow import trainer
from tensorflow.python import pywrap_tfe
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.client import device_lib
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.distribute import input_lib, values
from tensorflow.python.eager import backprop, imperative_grad, record
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import core as eager_core
from tensorflow.python.eager import execute as eager_execute
from tensorflow.python.eager.polymorphic_function import atomic_function, polymorphic_function
from tensorflow.python.framework import (
    auto_control_deps_utils,
    config,
    kernels,
    op_def_registry,
)
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import (
    control_flow_util,
    default_gradient,
    gradients_util,
    handle_data_util,
    resource_variable_ops,
    while_v2,
)
from tensorflow.python.util import tf_stack

# Why: an argument of a step may be a sparse, ragged or other composite tensor, which is made of
# tensors, and there is no public name for the class.
# If it changes: `strategy.run` and `evener.distribute` take no such arguments.
CompositeTensor = tf.__internal__.CompositeTensor

# Why: a layer may have Keras's trainer and be no `keras.Model`; there is no public name for it.
# If it changes: such models train on one device under `evener run`.
Trainer: Any = trainer.TensorFlowTrainer

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns the replacement of a function."""


def local_values(value: Any) -> tuple[Any, ...]:
    """Return the values of all replicas of a distributed value, in the order of replicas."""
    if isinstance(value, values.DistributedValues):
        return tuple(value.values)
    return (value,)


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


def model_strategy(model: keras.Model) -> tf.distribute.Strategy | None:
    """Return the strategy in whose scope a model was made, or None."""
    return getattr(model, "_distribute_strategy", None)


def around_new_variables(scope: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    """Create every Keras variable from now on inside a context, in every thread.

    Why: a `tf.variable_creator_scope` around a whole program holds in one thread only, and
    ends with ``keras.utils.clear_session``, which begins a new graph.
    If it changes: the variables of an unchanged script have no owner, and are all on one device.
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


def outer_tensor(tensor: tf.Tensor) -> Any | None:
    """Return the outer tensor that a tensor of a function's graph captures, or None.

    Why: `FuncGraph.captures` makes the list of all captures anew after every further one, and
    an optimizer that is traced captures thousands and asks for each.
    If it changes: operations on captured variables do not find their device.
    """
    captures = getattr(tensor.graph, "function_captures", None)
    if captures is None:
        return None
    # What was captured last is asked for most.
    for key, inner in reversed(captures.by_val_internal.items()):
        if inner is tensor:
            return captures.by_val_external[key]
    return None


def without_program_order(operation: tf.Operation) -> None:
    """Take an operation out of the order in which a function's stateful operations run.

    Why: reading the clock is stateful, and TensorFlow runs stateful operations in the order of
    the program: the clock would be read after other parts of the step, too late.
    If it changes: the times of the parts are wrong, and so are the shares made from them.
    """
    order = getattr(operation.graph, "experimental_acd_manager", None)
    if order is not None:
        order.run_independently(operation)


def written_resources(operation: tf.Operation) -> list[Any]:
    """Return the inputs of an operation that are resources, such as variables, which it writes.

    Why: whether a call of a function writes a variable or only reads it is known to TensorFlow's
    order of stateful operations alone.
    If it changes: steps on one device are not timed.
    """
    return list(auto_control_deps_utils.get_read_write_resource_inputs(operation)[1])


@contextlib.contextmanager
def trained_variables() -> Iterator[list[tf.Variable]]:
    """Hand over a list that has, at the end of the block, the trainable variables used in it.

    Why: a graph lists its trainable variables when it is complete, and a `tf.GradientTape` around
    the block would change the functions that are traced in it.
    If it changes: steps on one device are not timed.
    """
    found: list[tf.Variable] = []
    with record.VariableWatcher() as watcher:
        yield found
    found.extend(watcher.watched_variables())


def is_traced_function(fn: Any) -> bool:
    """Return whether this is what `tf.function` makes.

    Why: there is no public name for its class. If it changes: a traced function given to
    `strategy.run` eagerly is not partitioned, and runs on one device.
    """
    return isinstance(fn, polymorphic_function.Function)


def is_deterministic() -> bool:
    """Return whether `tf.config.experimental.enable_op_determinism` was called.

    Why: operations that read the clock fail then, and there is no public getter.
    If it changes: steps on several devices fail where it was called.
    """
    return config.is_op_determinism_enabled()


def body_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a `tf.function` was made of, or itself where XLA compiles it.

    Why: a step is traced once, for all devices; what XLA compiles is known by its call alone,
    and no public attribute says whether it does.
    If it changes: a step with ``jit_compile=True`` runs without XLA.
    """
    return fn if is_compiled(fn) else getattr(fn, "python_function", fn)


def is_compiled(fn: Callable[..., Any]) -> bool:
    """Return whether XLA compiles a function. See `body_of`."""
    return bool(getattr(fn, "_jit_compile", None))


def replace_traced_call(wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap the call of every `tf.function`.

    Why: `evener run` passes the traced functions that a script calls to `strategy.run`, and there
    is no public name for their class.
    If it changes: custom loops of unchanged scripts run on one device.
    """
    kind: Any = polymorphic_function.Function
    kind.__call__ = wrapper(kind.__call__)


def autographed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as AutoGraph converts it, if it converts the code around.

    Why: loops and conditions on tensors in a function given to `strategy.run` must work as they
    do under `MirroredStrategy`. If it changes: they raise in a graph.
    """
    autograph = tf.__internal__.autograph
    return autograph.tf_convert(fn, autograph.control_status_ctx(), convert_by_default=False)


def before_autograph_rewrites(error: Exception) -> Callable[[], Exception]:
    """Return what gives an error back as it is now.

    Why: AutoGraph marks an error in each converted function that it leaves, and makes another error
    of a marked one: of a KeyError that it has made itself, a StagingError.
    If it changes: errors of a person's code have another type than without evener.
    """
    name = "ag_error_metadata"
    found = vars(error).get(name)

    def as_it_was() -> Exception:
        if found is not None:
            vars(error)[name] = found
        else:
            vars(error).pop(name, None)
        return error

    return as_it_was


def autographed_always(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as AutoGraph converts it, whatever it does with the code around.

    Why: a person's `tf.function` is taken apart, and what was inside of it has to be
    converted, but not the engine around it. If it changes: loops and conditions on tensors in
    a traced function given to `strategy.run` raise.
    """
    unspecified = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.UNSPECIFIED)
    return tf.__internal__.autograph.tf_convert(fn, unspecified)


def is_per_replica(value: Any) -> bool:
    """Return whether a value is a distributed one, with a value for each replica."""
    return isinstance(value, values.DistributedValues)


def plain_variable(initial_value: Any, dtype: tf.DType) -> tf.Variable:
    """Return a variable that no creator scope knows of.

    Why: the doctor's counters in a graph are not weights of the program: a strategy must not give
    them an owner or mirror them. If it changes: the doctor's watched run fails.
    """
    return resource_variable_ops.ResourceVariable(
        initial_value=initial_value, dtype=dtype, trainable=False
    )


def stack() -> list[tuple[str, int]]:
    """Return file and line of all frames, the innermost last, as the person wrote them.

    Why: AutoGraph runs code of its own; TensorFlow knows which line it came from.
    If it changes: messages name lines of generated files.
    """
    return [(frame.filename, frame.lineno) for frame in tf_stack.extract_stack()]


@contextlib.contextmanager
def before_functions_run(watch: Callable[[Any, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call ``watch(function, inputs)`` before every traced function that is run from Python.

    Why: an audit needs the function that a call ends in, with the tensors it is given, and
    must not run it: what ``watch`` raises comes out of the call. There is no public hook.
    If it changes: audits run the step, and say that they found none.
    """
    kind = atomic_function.AtomicFunction
    original = kind.call_flat

    @functools.wraps(original)
    def call_flat(self: Any, *inputs: Any) -> Any:
        if tf.executing_eagerly():
            watch(self, inputs)
        return original(self, *inputs)

    kind.call_flat = call_flat
    try:
        yield
    finally:
        kind.call_flat = original


def around_functions_run(wrap: Callable[[Any], contextlib.AbstractContextManager[Any]]) -> None:
    """Run every traced function that is run from Python inside a context, from now on.

    Why: it shows how long a program's functions run, whoever calls them. There is no public hook.
    If it changes: `evener run` does not say that a function ran on one device.

    Args:
        wrap: Called with the function; returns the context.
    """
    kind: Any = atomic_function.AtomicFunction
    original = kind.call_flat

    @functools.wraps(original)
    def call_flat(self: Any, *inputs: Any) -> Any:
        if not tf.executing_eagerly():
            return original(self, *inputs)
        with wrap(self):
            return original(self, *inputs)

    kind.call_flat = call_flat


def placed_without_running(function: Any, inputs: Sequence[Any], *, optimized: bool) -> Any:
    """Return what TensorFlow makes of a traced function for these inputs, and do not run it.

    Why: TensorFlow optimizes, places and cuts a function when it is first called, and checks
    the types of its inputs after that. So a copy of the function, with one more input that
    nobody uses, is called with a wrong type for that input: everything is made ready, and
    nothing runs. The public way (``tf.summary.trace_on(graph=True)``) runs the step.
    If it changes: the call does not raise, and the audit says so.

    Args:
        function: What `before_functions_run` was given.
        inputs: Its inputs.
        optimized: Whether as it would run; else as it is written, with nothing left out.

    Returns:
        A ``RunMetadata.FunctionGraphs``: the graph before and after placement, and its parts.
    """
    context = eager_context.context()
    definition = type(function.definition)()
    definition.CopyFrom(function.definition)
    name = f"evener_audit_{next(_AUDITS)}"
    definition.signature.name = name
    definition.signature.input_arg.add(name=GUARD, type=tf.int32.as_datatype_enum)
    context.add_function_def(definition)
    config = tf.compat.v1.ConfigProto.FromString(
        context.function_call_options.config_proto_serialized
    )
    if not optimized:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
    num_outputs = len(definition.signature.output_arg)
    with tf.device("/CPU:0"):
        wrong = tf.constant(0.0)
    try:
        with _graphs_collected(context) as collected:
            try:
                eager_execute.execute(
                    name,
                    num_outputs,
                    [*inputs, wrong],
                    ("executor_type", "", "config_proto", config.SerializeToString()),
                    context,
                )
            except tf.errors.InvalidArgumentError as error:
                if name not in error.message or "was expected to be" not in error.message:
                    raise
            else:
                raise RuntimeError(f"{name} ran: TensorFlow no longer checks its inputs first")
    finally:
        context.remove_function(name)
    return collected[0] if collected else None


GUARD = "evener_guard"
"""The input of a function under audit whose type is wrong, so that it does not run."""

_AUDITS = itertools.count()


@contextlib.contextmanager
def _graphs_collected(context: Any) -> Iterator[list[Any]]:
    """Collect the graphs of all functions that are made ready inside."""
    collected: list[Any] = []

    def flush() -> None:
        # Graphs are handed over when the next operation has run.
        with tf.device("/CPU:0"):
            tf.add(1.0, 1.0)

    # Its own graph would be collected too, the first time.
    flush()
    context.enable_graph_collection()
    context.export_run_metadata()
    try:
        yield collected
        flush()
        collected.extend(context.export_run_metadata().function_graphs)
    finally:
        context.disable_graph_collection()


def function_graphs(function: Any) -> dict[str, tf.Graph]:
    """Return the graph of a traced function and of all functions that it calls, by name.

    Why: these graphs hold the line of the program that made each operation; what TensorFlow
    places is made of the same functions under the same names.
    If it changes: audits know neither lines nor kinds of work.
    """
    graphs: dict[str, tf.Graph] = {}
    waiting = [(tf.compat.as_str(function.name), function.graph)]
    while waiting:
        name, graph = waiting.pop()
        if name in graphs:
            continue
        graphs[name] = graph
        # What the partitioner makes of traced graphs names those.
        for function in getattr(graph, "_evener_functions", ()):
            waiting.extend(function.origins.items())
        for inner in list(graph._functions):
            called = graph._get_function(inner)
            if called is not None and called._cached_graph is not None:
                waiting.append((tf.compat.as_str(inner), called._cached_graph))
    return graphs


def definition_frames(operation: tf.Operation) -> list[tuple[str, int, str]]:
    """Return file, line and function of the frames in which an operation was made.

    The innermost is the last; lines are those the person wrote, not AutoGraph's.

    Why: it shows what a tape made, and which line to change. The property is public, its form
    is undocumented. If it changes: audits know neither lines nor kinds of work.
    """
    return [(frame.filename, frame.lineno, frame.name) for frame in operation.traceback]


def copy_handle_data(source: tf.Tensor, target: tf.Tensor) -> None:
    """Copy the shape of a variable to a placeholder for it.

    Why: sizes in a placed graph follow from it. If it changes: sizes of copies are unknown.
    """
    handle_data_util.copy_handle_data(source, target)


def registered_kernels(op_type: str) -> list[Any]:
    """Return the kernel definitions of one type of operation, for all kinds of devices.

    Why: they say which dtypes have a GPU kernel, and what works in host memory.
    If it changes: reasons for fallbacks come from the table alone.
    """
    return list(kernels.get_registered_kernels_for_op(op_type).kernel)


def all_registered_kernels() -> list[Any]:
    """Return the definitions of all kernels. See `registered_kernels`."""
    return list(kernels.get_all_registered_kernels().kernel)


def operation_definition(op_type: str) -> Any | None:
    """Return the definition of a type of operation, or None if there is none.

    Why: a kernel names the arguments that it takes in host memory; the definition says which
    there are. If it changes: nothing is said to work in host memory.
    """
    return op_def_registry.get(op_type)


def operation_names() -> list[str]:
    """Return the names of all types of operations. See `operation_definition`."""
    return sorted({kernel.op for kernel in all_registered_kernels()})


def operation_seeds() -> Any:
    """Return the state from which TensorFlow draws seeds for eager random operations.

    Why: there is no public getter, and an audit must not change what comes after it.
    If it changes: a program with an audit draws other random numbers than one without.
    """
    # Made at the first call of `tf.random.set_seed`.
    rng = getattr(eager_context.context(), "_rng", None)
    return None if rng is None else rng.getstate()


def set_operation_seeds(state: Any) -> None:
    """Put back what `operation_seeds` returned."""
    if state is not None:
        eager_context.context()._rng.setstate(state)


def build_for_step(model: keras.Model, batch: Any) -> None:
    """Make what a model makes before its first step: its own, its optimizer's, its metrics'.

    Why: in ``fit``, Keras does so from a batch before it traces the step.
    If it changes: steps of models that were not trained yet cannot be audited.
    """
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=batch)


# Why: raised in place of an eager operation's fast way, it makes TensorFlow take the slower one,
# which records in Python. If it changes: eager operations under a tape and a device fail.
FallBack = eager_core._FallbackException


def is_eager_tensor(value: Any) -> bool:
    """Return whether a value is a tensor outside of all graphs.

    Why: there is no public name for its class. If it changes: eager updates are computed on the
    first device.
    """
    return isinstance(value, framework_ops.EagerTensor)


@contextlib.contextmanager
def symbolic_lengths() -> Iterator[None]:
    """Let ``len(tensor)`` be the first size of a tensor in a graph, if that is known.

    Why: eager code asks for it; without AutoGraph, TensorFlow refuses it even for a known size.
    If it changes: steps with `len(batch)` are not hoisted, and run as they are written.
    """
    kind = tf.__internal__.SymbolicTensor
    original = kind.__len__

    def length(tensor: tf.Tensor) -> int:
        size = tensor.shape[0] if tensor.shape.rank else None
        return original(tensor) if size is None else size

    kind.__len__ = length
    try:
        yield
    finally:
        kind.__len__ = original


def unwrapped(value: Any) -> Any:
    """Return the container of Python in one of TensorFlow's wrappers around it, or the value.

    Why: `tf.Module` wraps dictionaries and tuples that are its attributes. If it changes: steps
    that use such an attribute are not hoisted.
    """
    return value.__wrapped__ if issubclass(type(value), wrapt.ObjectProxy) else value


def tape_is_recording() -> bool:
    """Return whether any tape of this thread records now.

    Why: eager operations take their slower way only where a tape has to know their device.
    If it changes: eager gradients run on the first device.
    """
    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


def in_xla(graph: Any) -> bool:
    """Return whether a graph, or one around it, is compiled by XLA.

    Why: XLA knows one device, and ignores or refuses others. While a function with
    ``jit_compile=True`` is traced, this context alone tells.
    If it changes: a pinned layer in such a function silently runs on another device.
    """
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def current_device() -> str:
    """Return the device that a `tf.device` around asks for, in a graph too, or an empty string.

    Why: Keras makes variables after the call that asked for them, when `tf.device` has ended,
    and there is no public getter. If it changes: variables built in a model's first call are
    made on the first device.
    """
    if not tf.executing_eagerly():
        graph: Any = tf.compat.v1.get_default_graph()
        for spec in graph._device_function_stack.peek_objs():
            if spec.raw_string:
                return spec.raw_string
    return eager_context.context().device_name or ""


def replace_recording(
    *, record_gradient: Wrap, record_operation: Wrap, execute_fast: Wrap, begin_tape: Wrap
) -> None:
    """Replace the functions by which operations are recorded on tapes.

    Args:
        record_gradient: Wraps ``(op_name, inputs, attrs, outputs)``.
        record_operation: Wraps ``(op_type, output_tensors, input_tensors, backward_function)``.
        execute_fast: Wraps ``(context, op_name, name, *arguments)``, the fast way of eager
            operations, in C++.
        begin_tape: Wraps ``(tape)``, with which a `tf.GradientTape` begins to record.

    Why: a tape does not keep the device of an operation, and there is no public place to add it.
    If it changes: gradients run on the first device.
    """
    eager_execute.record_gradient = record_gradient(eager_execute.record_gradient)
    for name in ("record_operation", "record_operation_backprop_only"):
        setattr(record, name, record_operation(getattr(record, name)))
    kind: Any = tf.GradientTape
    kind._push_tape = begin_tape(kind._push_tape)
    pywrap_tfe.TFE_Py_FastPathExecute = execute_fast(pywrap_tfe.TFE_Py_FastPathExecute)


def replace_backward(
    *, gradient_function: Wrap, tape_gradient: Wrap, symbolic: Wrap, zeros_like: Wrap
) -> None:
    """Replace the functions that make gradients of recorded operations.

    Args:
        gradient_function: Wraps the one that tapes call for every operation.
        tape_gradient: Wraps ``(tape, target, sources, ...)``, a whole backward pass.
        symbolic: Wraps the context in which a graph's operation gets its gradient,
            ``(operation, gradient_uid, colocate)``: in `tf.gradients`, functions, branches, loops.
        zeros_like: Wraps ``(tensor, ...)``, with which the gradient of a variable in a loop begins.

    Why: as for `replace_recording`. If it changes: gradients run on the first device.
    """
    backprop._gradient_function = gradient_function(backprop._gradient_function)
    pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)
    imperative_grad.imperative_grad = tape_gradient(imperative_grad.imperative_grad)
    gradients_util._maybe_colocate_with = symbolic(gradients_util._maybe_colocate_with)
    default_gradient.zeros_like = zeros_like(default_gradient.zeros_like)
    while_v2._zeros_like = zeros_like(while_v2._zeros_like)


def replace_tape_arithmetic(*, aggregate: Wrap, fill: Wrap, num_elements: Wrap) -> None:
    """Replace how tapes sum gradients, and the zeros and ones that they fill in.

    Args:
        aggregate: Wraps ``(gradients)``, the sum of one tensor's gradients.
        fill: Wraps the functions that create zeros and ones.
        num_elements: Wraps ``(gradient)``, the number of its elements.

    Why: a tape does not say for which operation it adds and fills, and all of it would run on
    the first device. If it changes: the sums do.
    """
    space = backprop._default_vspace
    makers = ("zeros_fn", "ones_fn", "zeros_like_fn", "ones_like_fn")
    backprop._default_vspace = space._replace(
        aggregate_fn=aggregate(space.aggregate_fn),
        num_elements_fn=num_elements(space.num_elements_fn),
        **{name: fill(getattr(space, name)) for name in makers},
    )
    pywrap_tfe.TFE_Py_RegisterVSpace(backprop._default_vspace)


def keep_devices_of_waiting_variables() -> None:
    """Create Keras variables whose creation is deferred on the device that was requested.

    Why: Keras creates the variables that a subclassed model builds in its first call after that
    call, outside of every `tf.device`. If it changes: such variables are made on the first device.
    """
    kind: Any = keras.Variable
    begin, finish = kind.__init__, kind._deferred_initialize

    @functools.wraps(begin)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        if self._value is None:
            self._evener_device = current_device()

    @functools.wraps(finish)
    def deferred_initialize(self: Any) -> None:
        device = getattr(self, "_evener_device", "")
        with tf.device(device) if device else contextlib.nullcontext():
            finish(self)

    kind.__init__, kind._deferred_initialize = init, deferred_initialize


def waits_for(variable: Any, device: str) -> bool:
    """Set the device of a Keras variable without a value; return whether it has no value.

    See `keep_devices_of_waiting_variables`.
    """
    if variable._value is None:
        variable._evener_device = device
    return variable._value is None


def own_variables(layer: keras.Layer) -> list[Any]:
    """Return the Keras variables that a layer holds itself, with the seeds of its generators.

    Why: a layer may be pinned away from the layers inside it, and the public list joins all.
    If it changes: built layers cannot be pinned.
    """
    seeds = [generator.state for generator in layer._seed_generators]
    return [*layer._trainable_variables, *layer._non_trainable_variables, *seeds]


def renew_variable(variable: Any) -> tf.Variable:
    """Replace the value of a Keras variable by one on the current device; return the old one.

    Why: a `tf.Variable` cannot change its device. If it changes: built layers cannot be pinned.
    """
    old = variable._value
    value = tf.identity(old)
    strategy = old._distribute_strategy
    scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if strategy is not None and tf.distribute.get_strategy() is not strategy:
        scope = strategy.scope()
    with tf.init_scope(), scope:
        variable._initialize(value)
    return old


def replace_optimizer_steps(*, apply: Wrap, slot: Wrap, reduce: Wrap) -> None:
    """Replace parts of Keras's optimizers.

    Args:
        apply: Wraps ``apply`` of both kinds of optimizers.
        slot: Wraps ``add_variable_from_reference``.
        reduce: Wraps ``_all_reduce_sum_gradients``, which passes all gradients through one
            operation, even where there is nothing to reduce.

    Why: the last has no public name. If it changes: all gradients go through the first device.
    """
    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        kind.apply = apply(kind.apply)
    kind = keras.optimizers.Optimizer
    kind.add_variable_from_reference = slot(kind.add_variable_from_reference)
    kind._all_reduce_sum_gradients = reduce(kind._all_reduce_sum_gradients)


def leave_to_autograph(function: Callable[..., Any]) -> None:
    """Let AutoGraph call a function unconverted, but convert the functions that it calls.

    Why: replacements of `strategy.run` or `tape.gradient` must not be converted, and the public
    `do_not_convert` would exclude the program's step too.
    If it changes: loops and conditions on tensors fail in programs that are watched.
    """
    function.autograph_info__ = {"artifact": True}  # pyright: ignore[reportFunctionMemberAccess]


def replace_traced_function(wrap_init: Wrap, wrap_call: Wrap) -> None:
    """Replace how a `tf.function` is made and called.

    Why: to see how often a program's functions are traced. There is no public name for the
    class. If it changes: the doctor sees no functions and, in loops of one's own, no steps.
    """
    kind: Any = polymorphic_function.Function
    kind.__init__ = wrap_init(kind.__init__)
    kind.__call__ = wrap_call(kind.__call__)


def replace_host_reads(wrap: Wrap) -> None:
    """Replace the one function by which an eager tensor is brought to the host.

    Why: `numpy()`, `float()`, `bool()`, `print` and `np.array` all end there.
    If it changes: the doctor does not see what brings tensors to the host.
    """
    base: Any = framework_ops._EagerTensorBase
    base._numpy = wrap(base._numpy)


def replace_next_batches(wrap: Wrap) -> None:
    """Replace the functions by which iterators of `tf.data` and `tf.distribute` give a batch.

    Why: to time the wait for batches, in Python and in graphs. The classes have no public
    names. If it changes: the doctor takes all pipelines to be quick.
    """
    for kind in (iterator_ops.OwnedIterator, input_lib.DistributedIteratorBase):
        for name in ("__next__", "get_next", "get_next_as_optional"):
            setattr(kind, name, wrap(getattr(kind, name)))


def replace_local_devices(wrap: Wrap) -> None:
    """Replace the function by which programs list devices without ``tf.config``.

    Why: many programs count their GPUs by ``device_lib.list_local_devices``, which never had a
    public name. If it changes: such programs do not find stand-ins as GPUs.
    """
    vars(device_lib)["list_local_devices"] = wrap(device_lib.list_local_devices)
