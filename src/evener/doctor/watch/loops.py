"""Steps of `fit` and of custom loops, traced functions, and calls around the steps.

    for batch in dataset:                  boundary
        strategy.run(step, (batch,))   <-- outermost call, its trace takes a gradient
    for batch in dataset:
        with tf.GradientTape() ...         no outermost call:
        optimizer.apply_gradients(...) <-- the first such line is the boundary

A step is the time from one boundary to the next, so it holds all that the loop does. In `fit` it is
the time between Keras's calls of its callbacks.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import statistics
import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private import watched
from evener._tf_private.functions import (
    TRACED_FUNCTIONS,
    definition_frames,
    left_by_name,
    left_to_autograph,
)
from evener._tf_private.patches import Patch
from evener._tf_private.tensors import is_eager_tensor, is_per_replica, local_values
from evener.base.user_code import is_own
from evener.doctor.facts import CallUse, CodeLine, Steps, Traced, use_of
from evener.doctor.watch.recorder import (
    Original,
    Recorder,
    added,
    own_line,
    states_of_numpy,
    targets,
)
from evener.doctor.watch.times import Seconds, Times, num_bytes

_CUSTOM_STEPS = Patch(
    "gradients and updates of a watched program",
    "tensorflow:GradientTape.gradient",
    "keras:optimizers.Optimizer.apply",
    why="A step of a custom loop begins with gradients, and ends with an update.",
    if_it_changes="The doctor sees no steps in custom loops.",
)
_CALLBACKS = Patch(
    "callbacks of a watched program",
    *targets(
        "keras:callbacks.CallbackList."
        "{on_train_begin on_epoch_begin on_train_batch_begin on_train_batch_end on_train_end}"
    ),
    why="Steps of ``fit`` begin and end there, whatever callbacks the program passes.",
    if_it_changes="The doctor sees no steps of ``fit``.",
)
_CALLS = Patch(
    "calls around the steps of a watched program",
    *targets(
        "keras:Model.{fit evaluate predict predict_on_batch test_on_batch train_on_batch compile "
        "save save_weights load_weights set_weights}"
    ),
    *targets("tensorflow:train.Checkpoint.{save write restore}"),
    "tensorflow:train.CheckpointManager.save",
    "tensorflow:random.set_seed",
    *targets("keras:{utils.set_random_seed utils.clear_session backend.clear_session}"),
    why="To time what a program does besides its steps.",
    if_it_changes="The doctor does not know the time of saves and validations.",
)
_NAMES = {"set_random_seed": "set_seed", "write": "checkpoint"}
_OWN_CALLBACKS = (keras.callbacks.History, keras.callbacks.ProgbarLogger)
_HOOKS = ("on_epoch_begin", "on_epoch_end", "on_train_batch_begin", "on_train_batch_end")
_SPANS = ("input", "function", "eager", "read", "callback", "call")
_MOST_ARGUMENTS = 8
_MOST_TEXT = 200
_MOST_LOSSES = 500
_POLL_SECONDS = 0.25
# One call that takes so many steps by itself is a loop.
_LEAST_STEPS = 2
# Another line that trains so often in a row is a loop of its own.
_NEW_LEAD_AFTER = 10


@dataclass(slots=True, eq=False)
class _Loop:
    kind: str
    where: CodeLine | None
    num_steps: int = 0
    samples: list[Seconds] = field(default_factory=list)
    traced_samples: list[Seconds] = field(default_factory=list)
    batch_sizes: dict[int, None] = field(default_factory=dict)
    steps_per_epoch: int | None = None
    epochs: int = 0
    epochs_wanted: int = 0
    num_replicas: int = 1
    losses: list[Any] = field(default_factory=list)
    epoch_began_at: int = 0

    def median(self, kind: str) -> float:
        # Where every step traces, that is how long a step takes.
        samples = self.samples or self.traced_samples or [{kind: 0.0}]
        return statistics.median(sample[kind] for sample in samples)


class Loops:
    def __init__(self, recorder: Recorder, times: Times) -> None:
        self._recorder = recorder
        self.times = times
        self.loops: dict[tuple[Any, ...], _Loop] = {}
        self._functions: dict[CodeLine, Traced] = {}
        # What each was traced by, and the last that was traced of the same lines.
        self._leaves: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._last_traced: dict[CodeLine, weakref.ref[Any]] = {}
        self._calls: dict[tuple[str, CodeLine | None], CallUse] = {}
        self.open_calls: list[str] = []
        self.open_functions: list[Any] = []
        self.target: Any = None  # Gauge of the first target of a gradient
        self.num_replicas = 1
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.in_fit = False
        self.is_measuring = False
        self.traced = False
        self._open_since: float | None = None
        self._where: CodeLine | None = None
        self._trains = False
        self._keys = set[tuple[Any, ...]]()
        self._lead: tuple[Any, ...] | None = None
        self._num_others = 0
        self._last: tuple[float, Seconds] | None = None
        self._fit: _Loop | None = None
        self._first_in_execution = 0
        self._counted: tuple[float | None, int, float] = (None, 0, 0.0)

    def watch(self) -> None:
        around = {"__call__": self._call_function}
        TRACED_FUNCTIONS.apply_each(around, "doctor", by=left_to_autograph)
        made = {"__init__": self._make_function}
        TRACED_FUNCTIONS.apply_each(made, "made for the doctor", by=self._recorder.after_init)
        watched.STRATEGIES.apply_each({"run": self._run}, "runs", by=left_to_autograph)
        around = {"gradient": self._ask_gradient, "apply": self._apply}
        _CUSTOM_STEPS.apply_each(around, by=left_to_autograph)
        begins = {
            "on_train_begin": self._begin_fit,
            "on_epoch_begin": self._begin_epoch_of_fit,
            "on_train_batch_begin": self._begin_batch,
            "on_train_end": self._end_fit,
        }
        _CALLBACKS.apply_each(begins, by=self._recorder.before)
        ends = {"on_train_batch_end": self._batch_ends}
        _CALLBACKS.apply_each(ends, "ends", by=left_to_autograph)
        _CALLS.apply_by_name(left_by_name(self._known))
        self._recorder.every(_POLL_SECONDS, self._ask)

    @property
    def fit_line(self) -> CodeLine | None:
        """The line of the `fit` that runs, or ran last; without one, of the call that trains."""
        return self._where if self._fit is None else self._fit.where

    def num_calls(self, kind: str) -> int:
        return sum(use.num_calls for use in self._calls.values() if use.kind == kind)

    @property
    def main(self) -> _Loop | None:
        return max(self.loops.values(), key=lambda loop: loop.num_steps, default=None)

    def begin_epoch(self) -> None:
        """Take note of an iteration over data that a custom loop begins."""
        if self.in_fit or self.open_calls:
            return
        loop = self.loops.get(self._lead) if self._lead else None
        if loop is not None and loop.num_steps > loop.epoch_began_at:
            loop.steps_per_epoch = loop.num_steps - loop.epoch_began_at
            loop.epoch_began_at = loop.num_steps
            loop.epochs += 1

    def facts(self) -> dict[str, Any]:
        steps = max(1, self._recorder.num_steps - 1)
        return {
            "steps": tuple(_steps_of(loop, self.target) for loop in self.loops.values()),
            "traced": tuple(
                dataclasses.replace(
                    use, **(self._recorder.safely(_graph_facts, self._last_traced.get(where)) or {})
                )
                for where, use in self._functions.items()
            ),
            "calls": tuple(
                dataclasses.replace(use, per_step=use.num_after_first_step / steps)
                for use in self._calls.values()
            ),
        }

    def held(self) -> set[int]:
        """Return the ids of the program's tensors that are kept here."""
        return {id(value) for loop in self.loops.values() for _, value in loop.losses}

    def _count(self, kind: str, where: CodeLine | None, began: float, detail: str = "") -> None:
        use = self._calls.get((kind, where), CallUse(kind=kind, where=where, num_calls=0))
        if self._recorder.num_steps:
            seconds = self._recorder.clock() - began
            use = added(use, num_after_first_step=1, seconds=seconds)
        use = dataclasses.replace(use, num_calls=use.num_calls + 1, detail=detail or use.detail)
        self._calls[kind, where] = use

    def _known(self, name: str, original: Original, *args: Any, **kwargs: Any) -> Any:
        kind = _NAMES.get(name, name)
        is_inner = bool(self.open_calls)
        where = None if is_inner else own_line()
        if kind == "fit":
            self._recorder.tell("fit", where, args, kwargs)
        self.open_calls.append(kind)
        began = self._recorder.clock()
        try:
            if is_inner or kind in ("fit", "train_on_batch"):
                return original(*args, **kwargs)
            return self.times.span("call", original, *args, **kwargs)
        finally:
            self.open_calls.pop()
            # Keras validates inside of `fit`; what else calls itself is one call.
            if not is_inner or (kind == "evaluate" and self.open_calls == ["fit"]):
                is_trained = bool(args) and getattr(args[0], "_evener_trained", False)
                detail = "trained" if kind == "set_weights" and is_trained else ""
                if is_inner:
                    detail = str(kwargs.get("steps") or "")
                self._count(kind, where or self._where, began, detail)

    def _ask(self) -> None:
        """Read the counters of optimizers while a call runs: a loop in a graph takes its steps."""
        since, now = self._open_since, self._recorder.clock()
        if since is None or now - since < _POLL_SECONDS:
            self._counted = (None, 0, 0.0)
            return
        counted = max(
            (int(optimizer.iterations.numpy()) for optimizer in list(self.optimizers)), default=0
        )
        counted_since, num_before, at = self._counted
        num_new = counted - num_before
        if counted_since != since:
            self._counted = (since, counted, now)
        elif num_new >= _LEAST_STEPS:
            self._counted = (since, counted, now)
            loop = self._loop("graph loop", self._where)
            self._take(loop, num_new, defaultdict(float, step=(now - at) / num_new), is_timed=True)

    def _call(self, key: tuple[Any, ...], function: Original, args: Any, kwargs: Any) -> Any:
        """Call a function; if it is an outermost one that trains, that is a step."""
        if self._open_since is not None or not self._recorder.is_here:
            return function(*args, **kwargs)
        began = self._open_since = self._recorder.clock()
        self._trains = key in self._keys
        where = own_line() if self._lead in (None, key) else None
        self._where = where or self._where
        try:
            result = self.times.span("function", function, *args, **kwargs)
        finally:
            self._open_since = None
        if self._recorder.num_steps:
            line = where or own_line()
            self._recorder.safely(self.times.kept.give, tf.nest.flatten(result), line)
        if self._trains:
            self._keys.add(key)
            seconds = self._recorder.clock() - began
            self._recorder.safely(self._bound, key, "function", where, seconds)
        return result

    def _trained(self) -> None:
        if self._open_since is not None:
            self._trains = True
        elif tf.executing_eagerly() and not self.in_fit:
            where = own_line()
            if where is not None:
                self._bound(("eager", where), "eager", where)

    def _bound(
        self, key: tuple[Any, ...], kind: str, where: CodeLine | None, seconds: float | None = None
    ) -> None:
        if self.in_fit or not self._recorder.is_here:
            return
        if self._lead is None or self._num_others >= _NEW_LEAD_AFTER:
            self._lead, self._last, self._num_others = key, None, 0
        if key != self._lead:
            # Two lines of one step, as of a GAN, take turns; a loop of its own does not.
            self._num_others += 1
            return
        self._num_others = 0
        if self.open_calls[-1:] == ["train_on_batch"]:
            kind = "train_on_batch"
        loop = self.loops.setdefault(key, _Loop(kind, where, epochs=1))
        loop.num_replicas = max(loop.num_replicas, self.num_replicas)
        now, totals = self._recorder.clock(), self.times.now()
        last, self._last = self._last, None
        sample = None if last is None else _sample(now - last[0], totals, last[1])
        self._take(loop, 1, sample, is_timed=not self.traced)
        self.traced = False
        # What the doctor has done meanwhile is not the program's time.
        self._last = (self._recorder.clock(), self.times.now())

    def _loop(self, kind: str, where: CodeLine | None) -> _Loop:
        return self.loops.setdefault((kind, where), _Loop(kind, where))

    def _take(self, loop: _Loop, num_steps: int, sample: Seconds | None, *, is_timed: bool) -> None:
        loop.num_steps += num_steps
        self._recorder.num_steps += num_steps
        self._recorder.last_step_at = self._recorder.clock()
        if size := self._recorder.safely(self.times.batch_size):
            loop.batch_sizes.setdefault(size)
        is_first = loop.num_steps == num_steps
        if sample is not None and not self.is_measuring:
            if not is_timed:
                loop.traced_samples.append(sample)
            elif not is_first:
                loop.samples += [sample] * num_steps
        self._recorder.tell("step", is_timed and not self.is_measuring and not is_first)

    def _ask_gradient(self, original: Original, tape, target, sources, *args, **kwargs) -> Any:
        result = original(tape, target, sources, *args, **kwargs)
        variables = map(variable_of, tf.nest.flatten(sources))
        pairs = list(zip(variables, tf.nest.flatten(result), strict=True))
        self._recorder.tell("gradient", tape, target, pairs)
        self._recorder.safely(self._trained)
        return result

    def _apply(self, original: Original, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self._recorder.tell("apply", optimizer, args, kwargs)
        result = original(optimizer, *args, **kwargs)
        self.optimizers.add(optimizer)
        self._recorder.safely(self._trained)
        return result

    def _run(self, original: Original, strategy: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        self.num_replicas = max(self.num_replicas, strategy.num_replicas_in_sync)
        self._recorder.tell("run", strategy, args, kwargs)
        if not tf.executing_eagerly():
            return original(strategy, fn, *args, **kwargs)
        code = _code_of(fn)
        key = ("run", id(fn) if code is None else id(code))
        return self._call(key, original, (strategy, fn, *args), kwargs)

    def _make_function(self, function: Any) -> None:
        code = _code_of(function.python_function)
        if code is None or not is_own(code.co_filename):
            return
        where = CodeLine(file=code.co_filename, line=code.co_firstlineno)
        first = Traced(name=code.co_name, where=where, num_calls=0, num_traces=0, num_made=0)
        # TensorFlow makes one for each object whose method is decorated.
        is_bound = isinstance(getattr(function.python_function, "__wrapped__", None), MethodType)
        self._functions[where] = added(
            self._functions.get(where, first), num_made=int(not is_bound)
        )
        function._evener_where = where

    def _call_function(self, original: Original, function: Any, *args: Any, **kwargs: Any) -> Any:
        where: CodeLine | None = getattr(function, "_evener_where", None)
        key = ("function", where or id(function))
        num_traces = function.experimental_get_tracing_count()
        python_function = function.python_function
        if where is not None and tf.executing_eagerly():
            self._functions[where] = added(self._functions[where], num_calls=1)
        self.open_functions.append(function)
        began, drawn = self._recorder.clock(), states_of_numpy(python_function)
        try:
            return self._call(key, original, (function, *args), kwargs)
        finally:
            self.open_functions.pop()
            num_new = function.experimental_get_tracing_count() - num_traces
            self.traced = self.traced or num_new > 0
            if num_new and where is not None:
                use = added(self._functions[where], seconds=self._recorder.clock() - began)
                draws = use.draws_numpy or drawn != states_of_numpy(python_function)
                self._functions[where] = dataclasses.replace(use, draws_numpy=draws)
                self._recorder.safely(self._note_traces, where, function, num_new, args, kwargs)

    def _note_traces(
        self, where: CodeLine, function: Any, num_new: int, args: Any, kwargs: Any
    ) -> None:
        leaves = [_leaf(value) for value in tf.nest.flatten((args, kwargs))]
        seen, use = self._leaves.setdefault(function, []), self._functions[where]
        causes = ["variables"] * (num_new - 1)
        if use.num_traces:
            causes.insert(0, _cause(seen, leaves) if seen else "new function")
        seen.append(leaves)
        given = ", ".join([*map(shortly, args), *(f"{k}={shortly(v)}" for k, v in kwargs.items())])
        self._functions[where] = dataclasses.replace(
            added(use, num_traces=num_new),
            causes=(*use.causes, *causes),
            arguments=(*use.arguments, given[:_MOST_TEXT])[-_MOST_ARGUMENTS:],
        )
        self._last_traced[where] = weakref.ref(function)

    def _begin_fit(self, callbacks: Any, *_: Any, **__: Any) -> None:
        self.in_fit = True
        self._where = own_line()
        model, parameters = callbacks.model, callbacks.params or {}
        loop = self._fit = self._loop("fit", self._where)
        strategy = getattr(model, "distribute_strategy", None)
        loop.num_replicas = getattr(strategy, "num_replicas_in_sync", 1)
        self.num_replicas = max(self.num_replicas, loop.num_replicas)
        loop.steps_per_epoch = parameters.get("steps")
        loop.epochs_wanted = int(parameters.get("epochs") or 0)
        for callback in callbacks.callbacks:
            if isinstance(callback, _OWN_CALLBACKS):
                continue
            kind = f"callback {type(callback).__name__}"
            unused = CallUse(kind=kind, where=self._where, num_calls=0)
            self._calls.setdefault((kind, self._where), unused)
            for hook in _HOOKS:
                self._time_hook(callback, hook, kind)

    def _time_hook(self, callback: Any, hook: str, kind: str) -> None:
        original = getattr(callback, hook)
        if getattr(original, "_is_default", False) or hook in vars(callback):
            return
        where = self._where

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = self._recorder.clock()
            self.open_calls.append(kind)
            try:
                return self.times.span("callback", original, *args, **kwargs)
            finally:
                self.open_calls.pop()
                self._count(kind, where, began)

        setattr(callback, hook, timed)

    def _end_fit(self, callbacks: Any, *_: Any, **__: Any) -> None:
        self.in_fit, self._last = False, None
        for callback in callbacks.callbacks:
            for hook in _HOOKS:
                if hasattr(vars(callback).get(hook), "__wrapped__"):
                    delattr(callback, hook)

    def _begin_epoch_of_fit(self, *_: Any, **__: Any) -> None:
        if self._fit is not None:
            self._fit.epochs += 1
            self._fit.epoch_began_at = self._fit.num_steps

    def _begin_batch(self, _: Any, batch: int, *__: Any, **___: Any) -> None:
        self._first_in_execution = int(batch)
        self.traced = False
        self._last = (self._recorder.clock(), self.times.now())

    def _batch_ends(self, original: Original, callbacks: Any, batch: int, logs: Any = None) -> Any:
        result = original(callbacks, batch, logs)
        self._recorder.safely(self._end_batch, int(batch), logs)
        return result

    def _end_batch(self, batch: int, logs: Any) -> None:
        loop, last = self._fit, self._last
        if loop is None or last is None or not self._recorder.is_here:
            return
        num_steps = max(1, batch - self._first_in_execution + 1)
        sample = _sample(self._recorder.clock() - last[0], self.times.now(), last[1])
        if isinstance(logs, dict) and "loss" in logs and len(loop.losses) < _MOST_LOSSES:
            loop.losses.append((loop.num_steps - loop.epoch_began_at + num_steps, logs["loss"]))
        for kind in sample:
            sample[kind] /= num_steps
        self._take(loop, num_steps, sample, is_timed=not self.traced)


def _steps_of(loop: _Loop, target: Any) -> Steps:
    step = loop.median("step")
    parts = {kind: loop.median(kind) for kind in _SPANS}
    if loop.kind == "fit":
        losses = _batch_losses(loop.losses)
    else:  # of each step of a custom loop, as the tape was given it
        losses = [] if target is None else [float(row[0]) for row in target.rows()]
    return use_of(
        Steps,
        loop,
        num_timed=len(loop.samples),
        step_seconds=step,
        input_seconds=parts["input"],
        eager_seconds=parts["eager"],
        outside_seconds=max(0.0, step - sum(parts.values())) if loop.kind != "graph loop" else 0.0,
        num_eager_operations=loop.median("operations"),
        batch_sizes=tuple(loop.batch_sizes),
        losses=tuple(losses),
    )


def _batch_losses(logged: list[tuple[int, Any]]) -> list[float]:
    """Return the loss of each batch from the means over epochs that Keras logs."""
    found: list[float] = []
    before, num_before = 0.0, 0
    for number, mean in logged:
        if is_eager_tensor(mean):
            with watched.unrecorded():
                mean = float(tf.reduce_mean(tf.cast(mean, tf.float64)).numpy())
        if isinstance(mean, int | float):
            if number <= num_before:
                before, num_before = 0.0, 0
            found.append((mean * number - before * num_before) / (number - num_before))
            before, num_before = mean, number
    return found


def _sample(seconds: float, now: Seconds, before: Seconds) -> Seconds:
    spent = {kind: now[kind] - before[kind] for kind in (*_SPANS, "operations")}
    # The watcher's own time is none of the program's.
    return defaultdict(float, spent, step=seconds - (now["watcher"] - before["watcher"]))


def _graph_facts(traced: weakref.ref[Any] | None) -> dict[str, Any]:
    """Return size and constants of the last trace."""
    function = None if traced is None else traced()
    graph = None if function is None else watched.last_graph(function)
    if graph is None:
        return {}
    constants = [each for each in graph.get_operations() if each.type == "Const"]
    sizes = {each: size for each in constants if (size := num_bytes(each.outputs[0])) >= 1024}
    if not sizes:
        return {}
    largest = max(sizes, key=sizes.__getitem__)
    return {
        "constant_bytes": sum(sizes.values()),
        "largest_constant": tuple(largest.outputs[0].shape),
        "largest_where": defined_at(largest),
    }


def defined_at(operation: Any) -> CodeLine | None:
    """Return the innermost line of user code that made an operation of a graph."""
    own = [(file, line) for file, line, _ in definition_frames(operation) if is_own(file)]
    return CodeLine(file=own[-1][0], line=own[-1][1]) if own else None


def _leaf(value: Any) -> tuple[Any, ...]:
    """Return what a trace depends on in a leaf of its arguments."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return ("python value", type(value).__name__, repr(value))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return ("tensor", str(value.dtype), str(value.shape))  # An array becomes a tensor.
    return ("object", type(value).__name__, str(id(value)))


def _cause(seen: list[list[Any]], leaves: list[Any]) -> str:
    """Return how arguments differ from the most alike of those that were traced before.

    >>> _cause([[("tensor", "f4", "(2,)")]], [("tensor", "f4", "(3,)")])
    'shape'
    """
    alike = [before for before in seen if len(before) == len(leaves)]
    if not alike:
        return "structure"
    differences = [
        [(old, new) for old, new in zip(before, leaves, strict=True) if old != new]
        for before in alike
    ]
    kinds = set[str]()
    for old, new in min(differences, key=len):
        if old[0] == new[0] == "tensor":
            kinds.add("shape" if old[1] == new[1] else "dtype")
        else:
            kinds.add(new[0] if old[0] == new[0] else "structure")
    order = ("python value", "object", "structure", "dtype", "shape")
    return next((kind for kind in order if kind in kinds), "object")


def variable_of(source: Any) -> Any:
    # Under a strategy `value` is that of a replica.
    return source._value if isinstance(source, keras.Variable) else source


def dtype_of(value: Any) -> str:
    dtype = getattr(value, "dtype", "")
    return str(getattr(dtype, "name", dtype))


def shortly(value: Any) -> str:
    """Return what a function is traced by: dtype and shape of a tensor, the value of a number.

    >>> shortly(3), shortly([1, 2.5])
    ('3', '[1, 2.5]')
    """
    if tf.is_tensor(value) or isinstance(value, tf.Variable | keras.Variable):
        has_rank = getattr(value.shape, "rank", 0) is not None
        return f"{dtype_of(value)}{list(value.shape) if has_rank else '[?]'}"
    if is_per_replica(value):
        return f"PerReplica({', '.join(map(shortly, local_values(value)))})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shortly, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {shortly(item)}" for key, item in value.items()) + "}"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)[:40]
    return type(value).__name__


def _code_of(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "python_function", fn)
    fn = inspect.unwrap(fn) if callable(fn) else fn
    return getattr(getattr(fn, "__func__", fn), "__code__", None)
