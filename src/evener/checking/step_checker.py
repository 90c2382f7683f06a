"""Spot check of a step: it takes samples of a batch, and compares them in a thread.

::

    first run that is due    rows of the batch ──► host
    thread, meanwhile                               └► variables ──► both sides ──► warning, if any
    later runs               nothing: one comparison of two numbers

A run never waits for a check and never fails by it: if a check is impossible, its result is "not
done", with the reason.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.random_numbers import is_deterministic
from evener._tf_private.variables import plain_variable
from evener.checking.comparison import compare_samples, is_value_of_outer_graph
from evener.checking.cost import begins_after, estimated_seconds
from evener.checking.differences import as_array
from evener.checking.obstacle import find_obstacle, num_bytes, num_parts
from evener.checking.spot_check import NotDoneError, SpotCheck, not_done, warn_of_difference
from evener.engine.partition.emit import PartitionedStep
from evener.engine.partition.homes import HOST
from evener.engine.trace.first_sizes import fits_one_batch_size
from evener.engine.trace.step import TracedStep

LARGEST_ARGUMENTS = 1 << 26
"""Most bytes of the arguments of a check."""
LARGEST_BATCH = 64
"""Most samples of a batch of which no samples can be left out."""
_SMALL_BATCHES = 3
_SIZES = ((2, 1, 2), (2, 1), (1, 1))
"""Samples of each part, for batches of at least so many: unequal parts where possible."""
_LOG = logging.getLogger("evener")
_ONE_AT_A_TIME = threading.Lock()
_RUNNING: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class StepChecker:
    """Checks a partitioned step once.

    Args:
        step: Partitioned step.
        traced: Step as it was traced.
        when_checked: Function that is called with the result.
        takes_all: Whether arguments fit whole batches alone; such batches have to be small.
    """

    def __init__(
        self,
        step: PartitionedStep,
        traced: TracedStep,
        when_checked: Callable[[SpotCheck], None],
        *,
        takes_all: bool = False,
    ) -> None:
        self._when_checked = when_checked
        self._takes_all = takes_all or fits_one_batch_size(traced.graph)
        self._num_small = 0
        self._step = step
        self._traced = traced
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._due: tf.Variable | None = None
        self._begin = float("inf")
        reason = find_obstacle(step, traced)
        if reason:
            self._end(SpotCheck(state="not done", reason=reason))
            return
        self._sizes = _SIZES[0] if num_parts(step) > 2 else _SIZES[1]
        seconds = estimated_seconds(
            traced.graph,
            num_samples=LARGEST_BATCH if self._takes_all else sum(self._sizes),
            num_parts=len(self._sizes),
            variable_bytes=num_bytes(traced),
        )
        # Nothing may read the clock where all operations have to be deterministic.
        self._is_timed = not is_deterministic()
        self._delay = begins_after(seconds)
        self._begin = time.time() + self._delay if self._is_timed else 0.0

    @property
    def num_rows(self) -> int | None:
        """Number of the first samples that it still reads; None for all of a batch."""
        if self._begin == float("inf"):
            return 0
        return None if self._takes_all else sum(self._sizes)

    def offer(self, tensors: Sequence[Any]) -> None:
        """Take the first samples of a batch, outside of graphs, if a check is due.

        Args:
            tensors: Arguments of the step, flat.
        """
        if self._begin <= time.time():
            try:
                rows = [as_array(tensor) for tensor in self._rows(tensors)]
            except Exception as error:
                self._end(not_done(error))
                return
            self._take(*rows)

    def offer_in_graph(self, tensors: Sequence[Any]) -> None:
        """Let the graph that is being built take the first samples of a batch once."""
        if self._begin == float("inf"):
            return
        if self._due is None:
            with tf.init_scope(), tf.device(HOST):
                self._due = plain_variable(self._begin, tf.float64)
        due = self._due
        outer = list(filter(is_value_of_outer_graph, self._traced.captures))

        def give() -> tf.Operation:
            rows = [*self._rows(tensors), *outer]
            begin = tf.numpy_function(self._take, rows, tf.float64)
            return due.assign(tf.ensure_shape(begin, []), read_value=False)

        with tf.name_scope("evener_spot_check"), tf.device(HOST):
            now = tf.timestamp() if self._is_timed else tf.constant(0.0, tf.float64)
            tf.cond(due.read_value() <= now, give, tf.no_op)

    def _rows(self, tensors: Sequence[Any]) -> list[Any]:
        count = sum(self._sizes)
        rows = []
        for tensor, axis in zip(tensors, self._traced.batch_axes, strict=True):
            if axis is None or self._takes_all:
                rows.append(tensor)
            else:
                rows.append(tensor[(*[slice(None)] * axis, slice(count))])
        return rows

    def _take(self, *arrays: Any) -> float:
        """Begin the check with samples of a batch; return when to take those of another one."""
        try:
            with self._lock:
                if self._thread is None:
                    # TensorFlow may use the memory again.
                    self._begin_with([np.array(array) for array in arrays])
        except Exception as error:
            self._end(not_done(error))
        return np.float64(self._begin)  # pyright: ignore[reportReturnType]

    def _begin_with(self, arrays: list[np.ndarray]) -> None:
        axes = [*self._traced.batch_axes, *[None] * len(arrays)]
        pairs = list(zip(arrays, axes, strict=False))
        counts = {array.shape[axis] for array, axis in pairs if axis is not None}
        if len(counts) != 1:
            raise NotDoneError("the arguments have different numbers of samples")
        count = counts.pop()
        if count < 2:
            self._num_small += 1
            if self._num_small < _SMALL_BATCHES:
                return  # A later batch may do.
            raise NotDoneError("the batches have one sample")
        if sum(array.nbytes for array in arrays) > LARGEST_ARGUMENTS:
            raise NotDoneError("the arguments are large")
        if self._takes_all and count > LARGEST_BATCH:
            raise NotDoneError(f"no sample of the batch can be left out, and it has {count}")
        self._begin = float("inf")
        sizes = next(s for s in _SIZES if sum(s) <= count and len(s) <= len(self._sizes))
        if self._takes_all:
            sizes = (*sizes[:-1], count - sum(sizes[:-1]))
        arrays = [
            array if axis is None else array.take(range(sum(sizes)), axis) for array, axis in pairs
        ]
        # Not ended by force with the program, as a thread of one of TensorFlow's would be.
        self._thread = threading.Thread(
            target=self._check, args=(arrays, sizes), name="evener-spot-check", daemon=False
        )
        _RUNNING.add(self._thread)
        self._thread.start()

    def _check(self, arrays: list[np.ndarray], sizes: tuple[int, ...]) -> None:
        """Check, in a thread of its own; the interpreter waits for it to end."""
        with _ONE_AT_A_TIME:
            began = time.perf_counter()
            try:
                result = self._compare(arrays, sizes)
            # A program that was not written for a few samples may raise anything.
            except Exception as error:
                result = not_done(error)
            self._end(dataclasses.replace(result, seconds=time.perf_counter() - began))

    def _end(self, result: SpotCheck) -> None:
        self._begin = float("inf")
        _LOG.debug("spot check of a step: %s", result)
        self._when_checked(result)
        if result.state == "differs":
            warn_of_difference(result)

    def _compare(self, arrays: list[np.ndarray], sizes: tuple[int, ...]) -> SpotCheck:
        return compare_samples(self._step, self._traced, arrays, sizes, self._go_on)

    def _go_on(self) -> None:
        """Give a long check up where the program has ended and waits for it alone."""
        if self._delay and not threading.main_thread().is_alive():
            raise NotDoneError("the program has ended")


def wait_for_checks(timeout_seconds: float | None = None) -> None:
    """Wait for the checks that have begun.

    Args:
        timeout_seconds: Limit for each check; None for no limit.
    """
    for thread in list(_RUNNING):
        thread.join(timeout_seconds)
