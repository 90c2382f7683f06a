"""Traced functions: `tf.function`, and the concrete functions that it calls."""

from __future__ import annotations

import contextlib
import functools
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import atomic_function, polymorphic_function

from evener._tf_private.patches import Wrap


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


def replace_traced_call(wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap the call of every `tf.function`.

    Why: `evener run` passes the traced functions that a script calls to `strategy.run`, and there
    is no public name for their class.
    If it changes: custom loops of unchanged scripts run on one device.
    """
    kind: Any = polymorphic_function.Function
    kind.__call__ = wrapper(kind.__call__)


def replace_traced_function(wrap_init: Wrap, wrap_call: Wrap) -> None:
    """Replace how a `tf.function` is made and called.

    Why: to see how often a program's functions are traced. There is no public name for the
    class. If it changes: the doctor sees no functions and, in loops of one's own, no steps.
    """
    kind: Any = polymorphic_function.Function
    kind.__init__ = wrap_init(kind.__init__)
    kind.__call__ = wrap_call(kind.__call__)


_REFUSED = re.compile("Trying to access resource .* located in device .* from device")


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
