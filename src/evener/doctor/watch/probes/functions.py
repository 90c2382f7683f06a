"""The program's traced functions, its optimizers and its ``strategy.run``."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.functions import CALLED_AND_WATCHED, MADE_AND_WATCHED, leave_to_autograph
from evener._tf_private.patches import Patch, Wrap
from evener._tf_private.tensors import RUNS, is_per_replica, local_values
from evener.base.user_code import is_own
from evener.doctor.watch.probes.entries import Entries
from evener.doctor.watch.probes.events import Events

_MOST_ARGUMENTS = 8
_MOST_TEXT = 200

_GRADIENTS = Patch(
    "gradients of a watched program",
    "tensorflow:GradientTape.gradient",
    why="A step of a custom loop begins with gradients.",
    if_it_changes="The doctor sees no steps in custom loops.",
)
_UPDATES = Patch(
    "updates of a watched program",
    "keras:optimizers.Optimizer.apply",
    why="A step of a custom loop ends with an update.",
    if_it_changes="The doctor sees no steps in custom loops.",
)


class Functions:
    """Counts traces by the lines of the traced function, and finds the calls that train.

    Args:
        events: Events to record it in.
        entries: Record of calls and gradients.
    """

    def __init__(self, events: Events, entries: Entries) -> None:
        self._events = events
        self._entries = entries
        self._records: dict[tuple[str, int], dict[str, Any]] = {}
        self.num_replicas = 1
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def watch(self) -> None:
        """Begin to notice calls."""
        MADE_AND_WATCHED.apply(self._around_init)
        CALLED_AND_WATCHED.apply(self._around_call)
        RUNS.apply(_left_to_autograph(self._around_run))
        _GRADIENTS.apply(_left_to_autograph(self._around_gradient))
        _UPDATES.apply(_left_to_autograph(self._around_apply))

    def use(self, strategy: Any) -> None:
        """Take note of a strategy that something runs under."""
        self.num_replicas = max(self.num_replicas, getattr(strategy, "num_replicas_in_sync", 1))

    def write(self) -> None:
        """Write what was traced so far."""
        if self._records:
            self._events.write("traced", functions=list(self._records.values()))

    def _around_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def made(function: Any, *args: Any, **kwargs: Any) -> None:
            original(function, *args, **kwargs)
            function._evener_record = self._record_of(function.python_function)

        return made

    def _around_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            record = getattr(function, "_evener_record", None)
            key = ("function", id(function)) if record is None else ("lines", id(record))
            num_traces = function.experimental_get_tracing_count()
            if record is not None and tf.executing_eagerly():
                record["calls"] += 1
            try:
                return self._entries.call(key, original, (function, *args), kwargs)
            finally:
                num_new = function.experimental_get_tracing_count() - num_traces
                if num_new:
                    self._entries.traced = True
                    if record is not None:
                        self._note_trace(record, num_new, args, kwargs)

        leave_to_autograph(call)
        return call

    def _around_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(strategy: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            self.use(strategy)
            if not tf.executing_eagerly():
                return original(strategy, fn, *args, **kwargs)
            code = _code_of(fn)
            key = ("run", id(fn) if code is None else id(code))
            return self._entries.call(key, original, (strategy, fn, *args), kwargs)

        return run

    def _around_gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def gradient(tape: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tape, *args, **kwargs)
            self._entries.trained(is_eager=tf.executing_eagerly())
            return result

        return gradient

    def _around_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            self.optimizers.add(optimizer)
            self._entries.trained(is_eager=tf.executing_eagerly())
            return result

        return apply

    def _record_of(self, python_function: Any) -> dict[str, Any] | None:
        code = _code_of(python_function)
        if code is None or not is_own(code.co_filename):
            return None
        new = {"name": code.co_name, "where": [code.co_filename, code.co_firstlineno]}
        record = self._records.setdefault(
            (code.co_filename, code.co_firstlineno),
            {**new, "calls": 0, "traces": 0, "made": 0, "arguments": []},
        )
        # TensorFlow makes one for each object whose method is decorated.
        if not isinstance(getattr(python_function, "__wrapped__", None), MethodType):
            record["made"] += 1
        return record

    def _note_trace(self, record: dict[str, Any], num_new: int, args: Any, kwargs: Any) -> None:
        record["traces"] += num_new
        given = ", ".join([*map(shortly, args), *(f"{k}={shortly(v)}" for k, v in kwargs.items())])
        record["arguments"] = [*record["arguments"], given[:_MOST_TEXT]][-_MOST_ARGUMENTS:]
        # It may be the last that is heard.
        self.write()


def shortly(value: Any) -> str:
    """Return what a function is traced by: dtype and shape of a tensor, the value of a number.

    >>> shortly(3), shortly([1, 2.5])
    ('3', '[1, 2.5]')
    """
    if tf.is_tensor(value) or isinstance(value, tf.Variable | keras.Variable):
        dtype = getattr(value.dtype, "name", value.dtype)
        return f"{dtype}{list(value.shape) if _has_rank(value) else '[?]'}"
    if is_per_replica(value):
        return f"PerReplica({', '.join(map(shortly, local_values(value)))})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shortly, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {shortly(item)}" for key, item in value.items()) + "}"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)[:40]
    return type(value).__name__


def _has_rank(value: Any) -> bool:
    return getattr(value.shape, "rank", 0) is not None


def _code_of(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "python_function", fn)
    fn = inspect.unwrap(fn) if callable(fn) else fn
    return getattr(getattr(fn, "__func__", fn), "__code__", None)


def _left_to_autograph(wrap: Wrap) -> Wrap:
    def left(original: Callable[..., Any]) -> Callable[..., Any]:
        replacement = wrap(original)
        leave_to_autograph(replacement)
        return replacement

    return left
