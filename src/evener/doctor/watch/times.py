"""Time of a step by kind, and the tensors that steps leave: growth.

    |-- step ----------------------------------------------------------|
    | input | function ( input in its graph ) | read | callback | rest: outside of TensorFlow

A span inside of another one is not counted in the outer one.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import sys
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

import evener
from evener._tf_private import watched
from evener._tf_private.datasets import NEXT_BATCHES
from evener._tf_private.functions import left_to_autograph
from evener._tf_private.tensors import HOST_READS, is_eager_tensor, local_values, plain_variable
from evener.base.user_code import is_own
from evener.doctor.facts import CodeLine, Growth, HostRead
from evener.doctor.watch.recorder import (
    SCOPE,
    Original,
    Recorder,
    added,
    inside,
    own_frame,
    own_line,
)

_KERAS = str(Path(keras.__file__ or "").parent) + os.sep
# What Keras reads for its own logs and callbacks is no line of the program.
_ITSELF = (
    str(Path(evener.__file__ or "").parent) + os.sep,
    f"{_KERAS}src{os.sep}trainers",
    f"{_KERAS}src{os.sep}callbacks",
    f"{_KERAS}src{os.sep}backend{os.sep}tensorflow{os.sep}trainer.py",
)
_PASSED = tuple(f"{Path(module.__file__ or '').parent}{os.sep}" for module in (tf, np))
_MOST_LINES = 40
# Tensors of the last steps may still be in use.
_IN_USE_STEPS = 2
_LEAST_STEPS = 5
_MOST_TENSORS = 100_000
_DEEPEST = 3
DIFFERENCES = ("Sub", "SquaredDifference")
Seconds: TypeAlias = "defaultdict[str, float]"
"""Seconds by kind, and other numbers; 0 for kinds that there are none of."""


@dataclass(slots=True)
class _Span:
    kind: str
    inner_seconds: float = 0.0  # of spans inside of it


class Times:
    """Seconds of the thread that runs the program, by kind, since the start."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.kept = Kept(recorder)
        self._clock = recorder.clock
        self._thread = threading.get_ident()
        self._open: list[_Span] = []
        self.totals: Seconds = defaultdict(float)
        self.num_eager = 0
        self._last_size = 0
        self._reads: dict[CodeLine, HostRead] = {}
        self._drawing = threading.local()
        self._in_graphs: tuple[tf.Variable, tf.Variable] | None = None

    def watch(self) -> None:
        NEXT_BATCHES.apply(left_to_autograph(self._draw))
        HOST_READS.apply(self._around_read)
        watched.EAGER_OPERATIONS.apply(self._around_operation)

    def facts(self) -> dict[str, Any]:
        steps = max(1, self._recorder.num_steps - 1)
        longest = sorted(self._reads.values(), key=lambda use: -use.seconds)[:_MOST_LINES]
        reads = (dataclasses.replace(use, per_step=use.num_reads / steps) for use in longest)
        return {"host_reads": tuple(reads)}

    def span(self, kind: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return function(*args, **kwargs)
        self._open.append(_Span(kind))
        began = self._clock()
        try:
            return function(*args, **kwargs)
        finally:
            seconds = self._clock() - began
            self.totals[kind] += seconds - self._open.pop().inner_seconds
            if self._open:
                self._open[-1].inner_seconds += seconds

    def now(self) -> Seconds:
        """Return the seconds by kind until now, and the number of eager operations."""
        return self.span("watcher", self._now)

    def _now(self) -> Seconds:
        found = defaultdict(float, self.totals)
        if self._in_graphs is not None:
            waited = float(self._in_graphs[0].numpy())
            found["input"] += waited
            found["function"] -= waited
        found["operations"] = self.num_eager
        return found

    def batch_size(self) -> int:
        in_graph = 0 if self._in_graphs is None else int(self._in_graphs[1].numpy())
        return in_graph or self._last_size

    def _draw(self, original: Original, iterator: Any, *args: Any, **kwargs: Any) -> Any:
        take = functools.partial(original, iterator, *args, **kwargs)
        with inside(self._drawing, "inside") as is_inner:
            if is_inner:
                return take()
            if not tf.executing_eagerly():
                return self._draw_in_graph(take)
            batch = self.span("input", take)
            self.span("watcher", self._recorder.safely, self._note_draw, iterator, batch)
            return batch

    def _note_draw(self, iterator: Any, batch: Any) -> None:
        self._recorder.tell("draw", iterator)
        if self._recorder.num_steps:
            self.kept.give(tf.nest.flatten(batch), own_line())
        size = _num_samples(batch)
        if isinstance(size, int):
            self._last_size = size

    def _draw_in_graph(self, take: Callable[[], Any]) -> Any:
        if self._in_graphs is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._in_graphs = (plain_variable(0.0, tf.float64), plain_variable(0, tf.int64))
        waited, samples = self._in_graphs
        with tf.device("CPU:0"), tf.name_scope(SCOPE):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            batch = take()
        parts = [
            part for part in tf.nest.flatten(batch, expand_composites=True) if tf.is_tensor(part)
        ]
        with tf.control_dependencies(parts), tf.device("CPU:0"), tf.name_scope(SCOPE):
            waited.assign_add(tf.timestamp() - began)
            size = _num_samples(batch)
            if size is not None:
                samples.assign(tf.cast(size, tf.int64))
        return batch

    def _around_read(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def read(tensor: Any) -> Any:
            if not self._recorder.num_steps or self._recorder.is_looking:
                return original(tensor)
            began = self._clock()
            value = self.span("read", original, tensor)
            seconds = self._clock() - began
            # What a library reads for itself is no line of the program.
            if not self._open or self._open[-1].kind not in ("input", "function", "watcher"):
                frame = sys._getframe(1)
                self.span("watcher", self._recorder.safely, self._note_read, frame, seconds)
            return value

        return read

    def _around_operation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def execute(*args: Any) -> Any:
            # What runs inside of a draw, a callback or a function is theirs.
            if not self._recorder.num_steps or self._open or self._recorder.is_looking:
                return original(*args)
            result = self.span("eager", original, *args)
            self.span("watcher", self._recorder.safely, self._note_operation, result)
            if args[1] in DIFFERENCES:
                self.span("watcher", self._recorder.tell, "difference", args[1], *args[3:5])
            return result

        return execute

    def _note_read(self, frame: FrameType, seconds: float) -> None:
        where = _reader(frame)
        if where is not None:
            unused = HostRead(where=where, num_reads=0, per_step=0.0, seconds=0.0)
            use = self._reads.get(where, unused)
            self._reads[where] = added(use, num_reads=1, seconds=seconds)

    def _note_operation(self, result: Any) -> None:
        self.num_eager += 1
        where = own_line()
        if where is not None:
            self.kept.give(result, where)


def _num_samples(batch: Any) -> Any:
    """Return how many samples a batch has over all replicas: a number, a tensor or None."""
    if isinstance(batch, tf.experimental.Optional):
        # Whether it holds anything is known when it runs; its spec may know the size.
        specs = tf.nest.flatten(batch.element_spec)
        return specs[0].shape[0] if specs and getattr(specs[0], "shape", None) else None
    structure = tf.nest.flatten(batch)
    if not structure:
        return None
    parts = local_values(structure[0])
    if not all(tf.is_tensor(part) and part.shape.rank for part in parts):
        return None
    if all(part.shape[0] is not None for part in parts):
        return sum(part.shape[0] for part in parts)
    return tf.add_n([tf.shape(part)[0] for part in parts])


def _reader(frame: FrameType | None) -> CodeLine | None:
    """Return the own line that asked for a value, or None if a library asked for itself."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(_ITSELF):
            return None
        if not filename.startswith(_PASSED) and own_frame(frame) is frame:
            return own_line(frame)
        frame = frame.f_back
    return None


class Kept:
    """Remembers the tensors that a program is given, as long as they live.

    Weak references show what lives: looking at all objects of Python would disturb other threads.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._alive: dict[int, tuple[weakref.ref[Any], int, CodeLine | None]] = {}

    def give(self, structure: Any, where: CodeLine | None) -> None:
        if len(self._alive) > _MOST_TENSORS:
            return
        parts = structure if isinstance(structure, list | tuple) else (structure,)
        alive = self._alive
        for part in parts:
            if isinstance(part, list | tuple | dict):
                self.give(tf.nest.flatten(part), where)
            elif is_eager_tensor(part):
                key = id(part)
                reference = weakref.ref(part, lambda _, key=key: alive.pop(key, None))
                alive[key] = (reference, self._recorder.num_steps, where)

    def growth(self, held: set[int]) -> Growth | None:
        """Return what has grown; None after fewer than five steps."""
        last = self._recorder.num_steps
        if last < _LEAST_STEPS:
            return None
        gc.collect()
        steps = last - _IN_USE_STEPS
        kept = [
            (tensor, where, step)
            for key, (reference, step, where) in list(self._alive.items())
            if key not in held and 0 < step <= steps and (tensor := reference()) is not None
            # Handles, as those of datasets, hold nothing.
            if num_bytes(tensor)
        ]
        lines = Counter(where for where, _ in {(where, step) for _, where, step in kept})
        where, num = lines.most_common(1)[0] if lines else (None, 0)
        # Some that live on, as the last loss and the optimizer's state, are no growth.
        is_growth = num >= max(_LEAST_STEPS, steps // 2)
        tensors = [tensor for tensor, _, _ in kept]
        samples = [tensor for tensor, line, _ in kept if line == where]
        return Growth(
            tensors_per_step=len(tensors) / steps if is_growth else 0.0,
            bytes_per_step=sum(map(num_bytes, tensors)) / steps if is_growth else 0.0,
            holder=_holder_of(samples[len(samples) // 2]) if is_growth else "",
            where=where if is_growth else None,
        )


def num_bytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def _holder_of(tensor: Any) -> str:
    """Return the name of the container that keeps a tensor, as the program names it; or empty."""
    names: dict[int, str] = {
        id(value): name for name, value in vars(sys.modules["__main__"]).items()
    }
    frame = sys._getframe()
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            names.update((id(value), name) for name, value in frame.f_locals.items())
        frame = frame.f_back
    waiting: list[tuple[Any, int]] = [(tensor, 0)]
    seen = {id(waiting), id(names)}
    while waiting:
        value, depth = waiting.pop(0)
        for holder in gc.get_referrers(value):
            if id(holder) in seen or not isinstance(holder, list | tuple | dict | set):
                continue
            seen.add(id(holder))
            if id(holder) in names:
                return names[id(holder)]
            if isinstance(holder, dict):
                if (owner := _owner_of(holder)) is not None:
                    name = next((key for key, each in holder.items() if each is value), "")
                    return f"{type(owner).__name__}.{name}"
            if depth < _DEEPEST:
                waiting.append((holder, depth + 1))
    return ""


def _owner_of(attributes: dict[Any, Any]) -> Any:
    """Return the object of a class of the program whose attributes these are, or None."""
    for owner in gc.get_referrers(attributes):
        module = sys.modules.get(type(owner).__module__)
        file = str(getattr(module, "__file__", None) or "<none>")
        if is_own(file) and getattr(owner, "__dict__", None) is attributes:
            return owner
    return None
