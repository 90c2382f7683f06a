"""Traced functions: conversion by AutoGraph, calls, lines of the program, tracebacks, dry runs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
import sys
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import keras
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute as eager_execute
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import (
    autograph_util,
    function_type_utils,
    polymorphic_function,
)
from tensorflow.python.framework import op_def_registry
from tensorflow.python.util import tf_stack, traceback_utils

from evener._tf_private.graphs import kept_functions
from evener._tf_private.patches import Patch, Wrap, wrap_with
from evener.base.user_code import without_evener


def stack() -> list[tuple[str, int]]:
    """Return file and line of all frames, the innermost last, as the person wrote them.

    Why: AutoGraph runs code of its own; TensorFlow knows which line it came from.
    If it changes: messages name lines of generated files.
    """
    return [(frame.filename, frame.lineno) for frame in tf_stack.extract_stack()]


def definition_frames(operation: tf.Operation) -> list[tuple[str, int, str]]:
    """Return file, line and function of the frames in which an operation was made.

    The innermost is the last; lines are those the person wrote, not AutoGraph's.

    Why: it shows what a tape made, and which line to change. The property is public, its form
    is undocumented. If it changes: audits know neither lines nor kinds of work.
    """
    # What TensorFlow has made of a function's definition has none.
    return [(frame.filename, frame.lineno, frame.name) for frame in operation.traceback or ()]


def autographed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as AutoGraph converts it, if it converts the code around.

    Why: loops and conditions on tensors in a function given to `strategy.run` must work as they
    do under `MirroredStrategy`. If it changes: they raise in a graph.
    """
    autograph = tf.__internal__.autograph
    return autograph.tf_convert(fn, autograph.control_status_ctx(), convert_by_default=False)


def converted_as_by(fn: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the body of a `tf.function`, or of what is to become one, as its traces call it.

    Why: a person's `tf.function` is taken apart, and what was inside of it has to be converted
    by its own options, in the context that a trace of it begins, but not the engine around it.
    If it changes: loops and conditions on tensors in a traced function given to `strategy.run`,
    or in the functions that it gives to `strategy.run`, raise.
    """
    if hasattr(body, "autograph_info__"):
        return body  # It is converted, or must not be: its errors would be rewritten twice.
    if not getattr(fn, "_autograph", True):
        return tf.autograph.experimental.do_not_convert(body)
    features = getattr(fn, "_experimental_autograph_options", None)
    converted = autograph_util.py_func_from_autograph(body, features)

    @functools.wraps(body, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED, options=features):
            return converted(*args, **kwargs)

    leave_to_autograph(call)
    return call


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


def leave_to_autograph(function: Callable[..., Any]) -> None:
    """Let AutoGraph call a function unconverted, but convert the functions that it calls.

    Why: replacements of `strategy.run` or `tape.gradient` must not be converted, and the public
    `do_not_convert` would exclude the program's step too.
    If it changes: loops and conditions on tensors fail in programs that are watched.
    """
    function.autograph_info__ = {"artifact": True}  # pyright: ignore[reportFunctionMemberAccess]


def left_to_autograph(replacement, *given) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrap that AutoGraph leaves alone.

    What it makes calls `replacement` with `given`, the original and the arguments.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return replacement(*given, original, *args, **kwargs)

        if original.__name__ == "__init__":
            # Keras asks for the arguments of `__init__` by name, without following wrappers.
            call.__signature__ = inspect.signature(original)  # pyright: ignore
        leave_to_autograph(call)
        return call

    return wrap


def left_by_name(replacement) -> Callable[[Callable[..., Any], str], Callable[..., Any]]:
    """Return a wrap for `Patch.apply_by_name`: `replacement` gets the name before the original."""
    return lambda original, name: left_to_autograph(replacement, name)(original)


# Tracebacks of errors in a person's step: without the frames of evener, as without Keras's own.
#
# Keras and TensorFlow leave their frames out of tracebacks. Their ``disable_traceback_filtering``
# shows all frames again, those of evener too. An error of evener's own code keeps them.

E = TypeVar("E", bound=BaseException)

_MARK = "_evener_error_of_step"
_FILTERS = Patch(
    "filters of tracebacks",
    "keras.src.utils.traceback_utils:_process_traceback_frames",
    "tensorflow.python.util.traceback_utils:_process_traceback_frames",
    why="Fourteen frames of evener stand between a person's line and the message of TensorFlow.",
    if_it_changes="Tracebacks of wrong steps are long.",
)


def mark_as_error_of_step(error: E) -> E:
    """Mark an error that the step of a person has raised, and return it."""
    setattr(error, _MARK, True)
    return error


def is_error_of_step(error: BaseException | None) -> bool:
    """Return whether a person's step raised an error, while it was traced or executed."""
    return isinstance(error, tf.errors.OpError) or getattr(error, _MARK, False)


def shorten(error: BaseException) -> None:
    """Leave the frames of evener and TensorFlow out of the traceback of an error of a step."""
    error.__traceback__ = shortened(error, error.__traceback__)


def shortened(error: BaseException | None, found: TracebackType | None) -> TracebackType | None:
    """Return the traceback of an error of a step without the frames of evener and TensorFlow."""
    is_short = tf.debugging.is_traceback_filtering_enabled()
    if is_short and keras.config.is_traceback_filtering_enabled() and is_error_of_step(error):
        return traceback_utils._process_traceback_frames(without_evener(found))
    return found


def shorten_tracebacks() -> None:
    """Let the filters of Keras and TensorFlow leave out evener's frames. Safe to call again."""

    def process(original: Callable[..., Any], found: TracebackType | None) -> Any:
        # The filters are called where they have caught the error.
        return original(without_evener(found) if is_error_of_step(sys.exception()) else found)

    _FILTERS.apply(wrap_with(process))


GUARD = "evener_guard"
"""The input of a function under audit whose type is wrong, so that it does not run."""


_AUDITS = itertools.count()


def placed_without_running(function: Any, inputs: Sequence[Any], *, optimized: bool) -> Any:
    """Return what TensorFlow makes of a traced function for these inputs, and do not run it.

    Why: TensorFlow optimizes, places and cuts a function when it is first called, and checks
    the types of its inputs after that. So a copy of the function, with one more input that
    nobody uses, is called with a wrong type for that input: everything is made ready, and
    nothing runs. The public way (``tf.summary.trace_on(graph=True)``) runs the step.
    If it changes: the call does not raise, and the audit says so.
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
    attributes = ("executor_type", "", "config_proto", config.SerializeToString())
    with tf.device("/CPU:0"):
        wrong = tf.constant(0.0)
        # Its own graph would be collected too, the first time.
        tf.add(1.0, 1.0)
    num_outputs = len(definition.signature.output_arg)
    context.enable_graph_collection()
    try:
        context.export_run_metadata()
        eager_execute.execute(name, num_outputs, [*inputs, wrong], attributes, context)
    except tf.errors.InvalidArgumentError as error:
        if name not in error.message or "was expected to be" not in error.message:
            raise
        with tf.device("/CPU:0"):
            # Graphs are handed over when the next operation has run.
            tf.add(1.0, 1.0)
        graphs = context.export_run_metadata().function_graphs
        return graphs[0] if graphs else None
    else:
        raise RuntimeError(f"{name} ran: TensorFlow no longer checks its inputs first")
    finally:
        context.disable_graph_collection()
        context.remove_function(name)


def is_traced_function(fn: Any) -> bool:
    """Return whether this is what `tf.function` makes.

    Why: there is no public name for its class. If it changes: a traced function given to
    `strategy.run` eagerly is not partitioned, and runs on one device.
    """
    return isinstance(fn, polymorphic_function.Function)


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


class TracesOfProgram:
    """Finds the trace that a `tf.function` would run or make, and does not make it.

    Why: each trace of a program begins its random streams anew. Which calls share one depends on
    signatures, relaxed shapes, and the keys of arguments that are no tensors; TensorFlow itself
    says it, by a copy of the function that computes nothing. There is no public way to copy one.
    If it changes: no step can be called outside of functions.
    """

    def __init__(self, function: Any) -> None:
        function = function if is_traced_function(function) else tf.function(function)
        self._copy = function._clone(
            tf.autograph.experimental.do_not_convert(lambda *_, **__: None)
        )
        self._copy._function_type = self._type = function._function_type
        self._copy._default_values = self._defaults = function._default_values

    def find(self, args: Any, kwargs: Any) -> Any:
        """Return what stands for the trace that serves arguments."""
        return self._copy.get_concrete_function(*args, **kwargs)

    def shapes(self, trace, args, kwargs, tensors: Sequence[Any]) -> list[tf.TensorShape]:
        """Return the shapes that tensors among arguments have in a trace, in their order."""
        bound = function_type_utils.bind_function_inputs(args, kwargs, self._type, self._defaults)
        kind = trace.function_type
        given = kind.unpack_inputs(kind.bind(*bound.args, **bound.kwargs))
        found = {id(value): own.shape for value, own in zip(given, trace.inputs, strict=True)}
        return [found.get(id(tensor), tensor.shape) for tensor in tensors]


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
        for function in kept_functions(graph):
            waiting.extend(function.origins.items())
        for inner in list(graph._functions):
            # TensorFlow's older functions, as those of `tf.nn.ctc_loss`, keep no graph.
            called = getattr(graph._get_function(inner), "_cached_graph", None)
            if called is not None:
                waiting.append((tf.compat.as_str(inner), called))
    return graphs


_RUNS = Patch(
    "runs of traced functions",
    "tensorflow.python.eager.polymorphic_function.atomic_function:AtomicFunction.call_flat",
    why="An audit needs the function that a call ends in, with the tensors it is given, and must "
    "not run it; `evener run` measures how long functions run. There is no public hook.",
    if_it_changes="Audits run the step, and say that they found none; `evener run` does not say "
    "that a function ran on one device.",
)
_FUNCTION = "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function"
TRACED_FUNCTIONS = Patch(
    "traced functions that a program makes and calls",
    f"{_FUNCTION}.__init__",
    f"{_FUNCTION}.__call__",
    f"{_FUNCTION}._initialize",
    why="There is no public name for the class, and no hook around calls. `evener run` passes the "
    "functions of a script to `strategy.run`. A call that the death of another worker breaks off "
    "is made again with the same arguments. XLA compiles a function for one device, and refuses "
    "variables of others, before anything runs and without a type of error of its own: so compiled "
    "inference of a model would fail outside of ``run``. The doctor sees how often they are "
    "traced. A step whose first trace fails is traced once more.",
    if_it_changes="Custom loops of unchanged scripts run on one device; the death of a worker ends "
    "those of the others; compiled functions fail with TensorFlow's error outside of `run`; the "
    "doctor counts no traces.",
)


def failed_traces_leave_nothing() -> contextlib.AbstractContextManager[None]:
    """Let functions whose first traces fail have another one, for which variables have values.

    Why: TensorFlow gives new variables their values behind a trace that ends, and a function whose
    first trace has made some and failed returns None from then on.
    If it changes: steps that make variables and ask for the number of their samples behind them
    end with an error of shapes.
    """

    def initialize(
        original: Callable[..., None], function: Any, *args: Any, add_initializers_to: Any = None
    ) -> None:
        try:
            original(function, *args, add_initializers_to=add_initializers_to)
        except Exception:
            function._initialize_uninitialized_variables(add_initializers_to or [])
            function._created_variables = function._variable_creation_config = None
            raise

    return TRACED_FUNCTIONS.applied_each({"_initialize": initialize})


def before_functions_run(
    watch: Callable[[Any, tuple[Any, ...]], None],
) -> contextlib.AbstractContextManager[None]:
    """Call ``watch(function, inputs)`` before every traced function that is run from Python."""

    def run(original: Callable[..., Any], function: Any, *inputs: Any) -> Any:
        watch(function, inputs)
        return original(function, *inputs)

    return running_functions_by(run)


def running_functions_by(run: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Let ``run(original, function, *inputs)`` run every traced function that Python runs."""
    return _RUNS.applied(_eager_runs(run))


def around_functions_run(scope: Callable[[Any], contextlib.AbstractContextManager[Any]]) -> None:
    """Run every traced function that is run from Python inside a context, from now on."""

    def run(original: Callable[..., Any], function: Any, *inputs: Any) -> Any:
        with scope(function):
            return original(function, *inputs)

    _RUNS.apply(_eager_runs(run))


def _eager_runs(run: Callable[..., Any]) -> Wrap:
    def call_flat(original: Callable[..., Any], function: Any, *inputs: Any) -> Any:
        if tf.executing_eagerly():
            return run(original, function, *inputs)
        return original(function, *inputs)

    return wrap_with(call_flat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    has_resources: bool
    written: tuple[int, ...]  # Places of the resources among the inputs that it may change.
    others: tuple[str, ...]  # Types of operations that change or draw what is no variable.


# Operations with a state that is in their variables, or none that a program gets back.
_OF_VARIABLES = re.compile(
    "Assign|ReadVariable|Resource(?!Accumulator|Conditional)|Variable|VarIsInitialized|Rng|Stateful|"
    "Stateless|While|If|Case|PartitionedCall|Assert|Print|NoOp|Timestamp|CheckNumerics|"
    "Write.*Summary|LookupTable(Find|Size)"
)
_READING = re.compile("ReadVariable|ResourceGather|VariableShape|VarIsInitialized|Identity")
_EFFECTS: weakref.WeakKeyDictionary[Any, Effects] = weakref.WeakKeyDictionary()


def effects_of(function: Any) -> Effects:
    """Return what a function changes that is run from Python; see `running_functions_by`.

    Why: a run whose results are told instead must not have changed what the program sees later.
    There is no public way to the operations that run, and to the resources that they only read.
    If it changes: loops of scripts cannot be resumed.
    """
    if (known := _EFFECTS.get(function)) is None:
        found: dict[str, None] = {}
        definition = function.definition
        kinds = [argument.type for argument in definition.signature.input_arg]
        known = _EFFECTS[function] = Effects(
            has_resources=tf.resource.as_datatype_enum in kinds,
            written=tuple(sorted(_written(definition, {}, found))),
            others=tuple(found),
        )
    return known


def _written(definition: Any, seen: dict[str, set[int]], others: dict[str, None]) -> set[int]:
    """Return the places of the resources that a function writes; add its other stateful types."""
    context, written = eager_context.context(), set[int]()
    resources = {
        argument.name: place
        for place, argument in enumerate(definition.signature.input_arg)
        if argument.type == tf.resource.as_datatype_enum
    }
    for node in definition.node_def:
        kind = op_def_registry.get(node.op)
        if kind is not None and kind.is_stateful and not _OF_VARIABLES.match(node.op):
            others[node.op] = None
        functions = [
            called.name
            for attribute in node.attr.values()
            for called in (attribute.func, *attribute.list.func)
            # A check takes samples of a batch, which is nothing that the program sees.
            if called.name and not called.name.startswith("evener_spot_check")
        ]
        for name in functions:
            if name not in seen:
                seen[name] = set()
                seen[name] = _written(context.get_function_def(name), seen, others)
        # The first input of a condition chooses the branch.
        first = int(node.op.endswith(("If", "Case")))
        for place, source in enumerate(node.input):
            resource = resources.get(source)
            if resource is None:
                continue
            if functions:
                is_written = any(place - first in seen[name] for name in functions)
            else:
                is_written = not _READING.match(node.op)
            if is_written:
                written.add(resource)
    return written


@contextlib.contextmanager
def trained_variables() -> Generator[list[tf.Variable]]:
    """Hand over a list that has, at the end of the block, the trainable variables used in it.

    Why: a graph lists its trainable variables when it is complete, and a `tf.GradientTape` around
    the block would change the functions that are traced in it.
    If it changes: steps on one device are not timed.
    """
    found: list[tf.Variable] = []
    with record.VariableWatcher() as watcher:
        yield found
    found.extend(watcher.watched_variables())


def let_compiled_functions_follow(kind: type[Any]) -> None:
    """Let a compiled function whose variables are on other devices run by their strategy."""
    following: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    refusal = re.compile("Trying to access resource .* located in device .* from device")

    def call(original: Callable[..., Any], function: Any, /, *args: Any, **kwargs: Any) -> Any:
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
                if refusal.search(str(error)):
                    concrete = function.get_concrete_function(*args, **kwargs)
                    strategy = kind._owning(concrete.variables)
                if strategy is None:
                    raise
            following[function] = strategy
        return strategy._run_compiled(function, args, kwargs)

    TRACED_FUNCTIONS.apply_each({"__call__": call}, "compiled", by=left_to_autograph)
