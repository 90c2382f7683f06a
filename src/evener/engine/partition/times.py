"""Times of the parts, measured inside the step.

A task of a part runs from the arrival of its samples, or of tensors made of them, to the
completion of its results. Waits between two tasks do not count. The clock is read
on the host; on a GPU, the read waits for the work that it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from evener._tf_private.graphs import without_program_order
from evener.devices.names import canonical_device
from evener.engine.partition.homes import HOST
from evener.engine.partition.span_info import SpanInfo


class Recorder(Protocol):
    """Recorder of the times of steps.

    Attributes:
        before_part: Function for benchmarks and tests that is called in a part's graph, on its
            device, with the number of its replica and its samples; its result is computed within
            the part's time.
        counts: Whether it takes the totals of devices too.
        keeps_spans: Whether it takes the begin and the end of every task too.
    """

    before_part: Callable[[int, tf.Tensor], tf.Tensor] | None

    @property
    def counts(self) -> bool:
        """Whether it takes the totals of devices too."""
        ...

    @property
    def keeps_spans(self) -> bool:
        """Whether it takes the begin and the end of every task too."""
        ...

    def record_and_review(self, samples: tf.Tensor, seconds: tf.Tensor) -> None:
        """Take the samples and the seconds of all replicas, two float64 vectors."""
        ...

    def record_totals(
        self, began: tf.Tensor, samples: tf.Tensor, seconds: Mapping[str, tf.Tensor]
    ) -> None:
        """Take the begin of a step, the samples of all replicas, and the seconds of devices."""
        ...

    def record_spans(self, spans: Sequence[SpanInfo], times: tf.Tensor) -> None:
        """Take the spans of a step and their begins and ends, float64 of shape ``[2, n]``."""
        ...


class Times:
    """Times of the replicas in one run.

    A replica of several stages takes as long as the device that takes longest.

    Args:
        sizes: Samples of each part, int32 scalars.
        replicas: Number of each part's replica.
        recorder: Recorder that takes the times when all parts are done.
        some: Whether other workers compute parts too, whose times are 0 here.
    """

    def __init__(
        self,
        sizes: Sequence[tf.Tensor],
        replicas: Sequence[int],
        recorder: Recorder,
        *,
        some: bool = False,
    ) -> None:
        self._some = some
        self._sizes = sizes
        self._replicas = replicas
        self._began: set[int] = set()
        self._spans: list[dict[str, list[tuple[tf.Tensor, tf.Tensor]]]] = [
            {} for _ in range(max(replicas) + 1)
        ]
        self._recorder = recorder

    def timed(
        self,
        part: int,
        call: Callable[[list[Any]], list[Any]],
        arguments: list[Any],
        waits: Sequence[int],
        note: Callable[[tf.Tensor, tf.Tensor], None] | None = None,
    ) -> list[Any]:
        """Call a task of a part and time it.

        Args:
            part: Number of the part.
            call: Function that calls the task.
            arguments: Arguments of the call, on the device of the part.
            waits: Indices of the arguments whose arrival starts the clock.
            note: Function that takes the begin and the end of the task.
        """
        begin = _now([arguments[index] for index in waits])
        before = [begin]
        replica = self._replicas[part]
        if self._recorder.before_part is not None and part not in self._began:
            with tf.control_dependencies(before):
                before = [self._recorder.before_part(replica, tf.identity(self._sizes[part]))]
        self._began.add(part)
        with tf.control_dependencies(before):
            # Otherwise a busy host could read the clock long after the task has begun.
            started = {index: tf.identity(arguments[index]) for index in waits}
        results = call([started.get(k, argument) for k, argument in enumerate(arguments)])
        # A call that hands nothing on has no end to see, and nobody waits for it.
        if results:
            end = _now(results)
            self._spans[replica].setdefault(results[0].device, []).append((begin, end))
            if note is not None:
                note(begin, end)
        return results

    def hand_over(self) -> None:
        """Hand the times over."""
        if not (any(self._spans) if self._some else all(self._spans)):
            return
        with tf.device(HOST):
            of_replicas: list[list[tf.Tensor]] = [[] for _ in self._spans]
            for size, replica in zip(self._sizes, self._replicas, strict=True):
                of_replicas[replica].append(size)
            samples = [tf.add_n(sizes) for sizes in of_replicas]
            seconds = [
                tf.reduce_max([seconds_within(spans) for spans in of_devices.values()])
                if of_devices
                else tf.constant(0.0, tf.float64)
                for of_devices in self._spans
            ]
            counted = tf.cast(tf.stack(samples), tf.float64)
            self._recorder.record_and_review(counted, tf.stack(seconds))
            if self._recorder.counts:
                begins = [begin for of_devices in self._spans for begin in _begins(of_devices)]
                began = tf.reduce_min(tf.stack(begins))
                self._recorder.record_totals(began, counted, self._seconds_of_devices())

    def _seconds_of_devices(self) -> dict[str, tf.Tensor]:
        """Return the busy seconds of each device, for all replicas together."""
        spans: dict[str, list[tuple[tf.Tensor, tf.Tensor]]] = {}
        for of_devices in self._spans:
            for device, of_device in of_devices.items():
                spans.setdefault(canonical_device(device), []).extend(of_device)
        return {device: seconds_within(of_device) for device, of_device in spans.items()}


def _begins(spans: Mapping[str, Sequence[tuple[tf.Tensor, tf.Tensor]]]) -> list[tf.Tensor]:
    return [begin for of_device in spans.values() for begin, _ in of_device]


def seconds_within(spans: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> tf.Tensor:
    """Return the seconds that at least one of several spans covers.

    Tasks of one device may overlap: one waits while another computes.

    Args:
        spans: Begin and end of each, in seconds.

    >>> float(seconds_within([(tf.constant(1.0), tf.constant(4.0)),
    ...                       (tf.constant(2.0), tf.constant(5.0)),
    ...                       (tf.constant(7.0), tf.constant(8.0))]))
    5.0
    """
    begins, ends = tf.stack([begin for begin, _ in spans]), tf.stack([end for _, end in spans])
    mine, other = begins[:, None], begins[None, :]
    # Of two that begin together, one is the first.
    is_first = np.tril(np.ones([len(spans), len(spans)], bool), -1)
    is_earlier = (other < mine) | ((other == mine) & is_first)
    # A span counts from where all that began before it are over.
    counts_from = tf.reduce_max(tf.where(is_earlier, ends[None, :], mine), axis=1)
    return tf.reduce_sum(tf.maximum(ends - counts_from, 0.0))


def _now(after: Sequence[Any]) -> tf.Tensor:
    """Read the clock once these tensors are there.

    The identities stay when a function's body is put in place of its call; a control
    dependency on the call itself would be dropped then.
    """
    reached = [tf.identity(tensor) for tensor in after]
    # One message to the host from each device, and not one for every tensor.
    of_device: dict[str, list[tf.Tensor]] = {}
    for tensor in reached:
        of_device.setdefault(tensor.device, []).append(tensor)
    done = []
    for device, tensors in of_device.items():
        with tf.device(device), tf.control_dependencies(tensors):
            done.append(tf.no_op())
    return read_clock(done)


def clock_after(waits: Sequence[Any], device: str) -> tf.Tensor:
    """Read the clock once tensors are there and operations have run, on a device or elsewhere.

    Args:
        waits: Tensors and operations.
        device: Device of those that have none.
    """
    # One message to the host from each device. Identities stay when functions are inlined.
    of_device: dict[str, list[Any]] = {}
    for wait in waits:
        of_device.setdefault(wait.device or device, []).append(wait)
    done: list[Any] = []
    for name, ends in of_device.items():
        with tf.device(name):
            reached = [tf.identity(end) if tf.is_tensor(end) else end for end in ends]
            with tf.control_dependencies(reached):
                done.append(tf.no_op())
    return read_clock(done)


def read_clock(after: Sequence[Any]) -> tf.Tensor:
    """Read the clock of the host once operations have run, in seconds.

    Args:
        after: The operations; one of each device at the best, each of which sends a message.
    """
    with tf.device(HOST), tf.control_dependencies(after):
        now = tf.timestamp()
    without_program_order(now.op)
    return now
