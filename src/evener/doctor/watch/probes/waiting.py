"""Time that the program waits for batches, and the size of the first batch."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener._tf_private.datasets import NEXT_BATCHES
from evener._tf_private.functions import leave_to_autograph
from evener._tf_private.tensors import local_values, plain_variable
from evener.doctor.watch.probes.events import Events

# The operations that read the clock in a graph are named so.
SCOPE = "evener_watch"


class Waiting:
    """Times what iterators give, in Python and in graphs.

    In a graph the clock is read before and after, and the difference is added to a variable on
    the host; Keras draws its batches there.

    Args:
        events: Events to record iterators in that cannot be timed.
        clock: Function that returns monotonic seconds.
    """

    def __init__(self, events: Events, clock: Callable[[], float]) -> None:
        self._events = events
        self._clock = clock
        self._seconds = 0.0
        self._batch_size = 0
        self._here = threading.local()
        self._in_graphs: tuple[tf.Variable, tf.Variable] | None = None

    def watch(self) -> None:
        """Begin to time all iterators."""
        NEXT_BATCHES.apply(self._timed)

    def seconds(self) -> float:
        """Return how long was waited in all so far."""
        if self._in_graphs is None:
            return self._seconds
        return self._seconds + float(self._in_graphs[0].numpy())

    def batch_size(self) -> int:
        """Return the samples of the first batch; 0 if none came, or it is not known."""
        if not self._batch_size and self._in_graphs is not None:
            self._batch_size = int(self._in_graphs[1].numpy())
        return self._batch_size

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def draw(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "inside", False):
                return original(iterator, *args, **kwargs)
            self._here.inside = True
            try:
                timed = self._in_python if tf.executing_eagerly() else self._in_graph
                return timed(functools.partial(original, iterator, *args, **kwargs))
            finally:
                self._here.inside = False

        leave_to_autograph(draw)
        return draw

    def _in_python(self, draw: Callable[[], Any]) -> Any:
        began = self._clock()
        batch = draw()
        self._seconds += self._clock() - began
        if not self._batch_size:
            self._batch_size = int(_num_samples(batch) or 0)
        return batch

    def _in_graph(self, draw: Callable[[], Any]) -> Any:
        waited, samples = self._variables()
        with tf.device("CPU:0"), tf.name_scope(SCOPE):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            batch = draw()
        parts = [
            part for part in tf.nest.flatten(batch, expand_composites=True) if tf.is_tensor(part)
        ]
        with tf.control_dependencies(parts), tf.device("CPU:0"), tf.name_scope(SCOPE):
            waited.assign_add(tf.timestamp() - began)
            size = _num_samples(batch)
            if size is not None:
                samples.assign(tf.where(samples == 0, tf.cast(size, tf.int64), samples))
        return batch

    def _variables(self) -> tuple[tf.Variable, tf.Variable]:
        if self._in_graphs is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._in_graphs = (
                    plain_variable(0.0, tf.float64),
                    plain_variable(0, tf.int64),
                )
        return self._in_graphs


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
