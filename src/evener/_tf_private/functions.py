"""Traced functions: `tf.function`, and the concrete functions that it calls."""

from __future__ import annotations

import contextlib
import functools
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import function_type_utils, polymorphic_function

from evener._tf_private.patches import Patch


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

    Args:
        function: The function of the program, a `tf.function` or what would be made one.
    """

    def __init__(self, function: Any) -> None:
        function = function if is_traced_function(function) else tf.function(function)
        self._copy = function._clone(tf.autograph.experimental.do_not_convert(_nothing))
        self._copy._function_type = self._type = function._function_type
        self._copy._default_values = self._defaults = function._default_values

    def find(self, args: Any, kwargs: Any) -> Any:
        """Return what stands for the trace that serves arguments."""
        return self._copy.get_concrete_function(*args, **kwargs)

    def shapes(
        self, trace: Any, args: Any, kwargs: Any, tensors: Sequence[Any]
    ) -> list[tf.TensorShape]:
        """Return the shapes that tensors among arguments have in a trace, in their order."""
        bound = function_type_utils.bind_function_inputs(args, kwargs, self._type, self._defaults)
        kind = trace.function_type
        given = kind.unpack_inputs(kind.bind(*bound.args, **bound.kwargs))
        found = {id(value): own.shape for value, own in zip(given, trace.inputs, strict=True)}
        return [found.get(id(tensor), tensor.shape) for tensor in tensors]


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Compute nothing."""


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
            # TensorFlow's older functions, as those of `tf.nn.ctc_loss`, keep no graph.
            called = getattr(graph._get_function(inner), "_cached_graph", None)
            if called is not None:
                waiting.append((tf.compat.as_str(inner), called))
    return graphs


_CALL_FLAT = "tensorflow.python.eager.polymorphic_function.atomic_function:AtomicFunction.call_flat"
CALL = "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function.__call__"

_BEFORE_RUNS = Patch(
    "functions that an audit stops",
    _CALL_FLAT,
    why="An audit needs the function that a call ends in, with the tensors it is given, and must "
    "not run it. There is no public hook.",
    if_it_changes="Audits run the step, and say that they found none.",
)
_AROUND_RUNS = Patch(
    "times of functions",
    _CALL_FLAT,
    why="It shows how long a program's functions run, whoever calls them. There is no public hook.",
    if_it_changes="`evener run` does not say that a function ran on one device.",
)
CALLS_OF_SCRIPTS = Patch(
    "traced functions that a script calls",
    CALL,
    why="`evener run` passes them to `strategy.run`, and there is no public name for their class.",
    if_it_changes="Custom loops of unchanged scripts run on one device.",
)
MADE_AND_WATCHED = Patch(
    "traced functions that a watched program makes",
    "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function.__init__",
    why="To see how often they are traced. There is no public name for the class.",
    if_it_changes="The doctor sees no functions.",
)
CALLED_AND_WATCHED = Patch(
    "traced functions that a watched program calls",
    CALL,
    why="To see how often they are traced. There is no public name for the class.",
    if_it_changes="The doctor sees no steps in custom loops.",
)
_COMPILED = Patch(
    "compiled functions outside of run",
    CALL,
    why="XLA compiles a function with ``jit_compile=True`` for one device, and refuses variables "
    "of others; so compiled inference of a model would fail outside of ``run``. XLA finds it out "
    "before anything runs, and has no type of error for it.",
    if_it_changes="Such functions fail with TensorFlow's error.",
)


def before_functions_run(
    watch: Callable[[Any, tuple[Any, ...]], None],
) -> contextlib.AbstractContextManager[None]:
    """Call ``watch(function, inputs)`` before every traced function that is run from Python.

    An exception of ``watch`` comes out of the call, and the function does not run.

    Returns:
        The context that this holds in.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call_flat(self: Any, *inputs: Any) -> Any:
            if tf.executing_eagerly():
                watch(self, inputs)
            return original(self, *inputs)

        return call_flat

    return _BEFORE_RUNS.applied(wrap)


def around_functions_run(scope: Callable[[Any], contextlib.AbstractContextManager[Any]]) -> None:
    """Run every traced function that is run from Python inside a context, from now on.

    Args:
        scope: Function of the traced function that returns the context.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call_flat(self: Any, *inputs: Any) -> Any:
            if not tf.executing_eagerly():
                return original(self, *inputs)
            with scope(self):
                return original(self, *inputs)

        return call_flat

    _AROUND_RUNS.apply(wrap)


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


_REFUSED = re.compile("Trying to access resource .* located in device .* from device")


def let_compiled_functions_follow(kind: type[Any]) -> None:
    """Let a compiled function whose variables are on other devices run by their strategy.

    Args:
        kind: Class of strategies. It has a class method ``_owning``, called with variables, which
            returns the strategy of one of them or None, and a method ``_run_compiled``.
    """
    following: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
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
                    strategy = _strategy_of(function, args, kwargs, error)
                    if strategy is None:
                        raise
                following[function] = strategy
            return strategy._run_compiled(function, args, kwargs)

        vars(call)["autograph_info__"] = {"artifact": True}
        return call

    def _strategy_of(function: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        if not _REFUSED.search(str(error)):
            return None
        return kind._owning(function.get_concrete_function(*args, **kwargs).variables)

    _COMPILED.apply(wrap)
