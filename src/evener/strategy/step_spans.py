"""Spans of the last training step: begin and end of every task, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from evener.engine.partition.homes import HOST
from evener.engine.partition.span_info import SpanInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """Spans of one step.

    Attributes:
        number: Number of the step among those that were recorded, from 0.
        trace: Number of the traced step, from 0.
        spans: Description of each span.
        times: Begin and end of each span, in seconds.
    """

    number: int
    trace: int
    spans: tuple[SpanInfo, ...]
    times: tuple[tuple[float, float], ...]


class StepSpans:
    """Keeps the spans of the last step. A step writes them at its end, all at once."""

    def __init__(self) -> None:
        self._traces: list[tuple[SpanInfo, ...]] = []
        with tf.init_scope(), tf.device(HOST):
            self._row = tf.Variable(
                tf.zeros([0], tf.float64), trainable=False, shape=[None], name="evener_spans"
            )
            self._count = tf.Variable(tf.zeros([], tf.int64), trainable=False)

    def record(self, spans: Sequence[SpanInfo], times: tf.Tensor) -> None:
        """Enter one step; part of the step's graph. See `Recorder.record_spans`."""
        with tf.device(HOST):
            number = tf.cast(self._count.assign_add(1), tf.float64) - 1.0
            trace = tf.constant(len(self._traces), tf.float64)
            self._row.assign(tf.concat([[trace, number], tf.reshape(times, [-1])], axis=0))
        self._traces.append(tuple(spans))

    def last(self) -> RecordedStep | None:
        """Return the last step; None if there was none."""
        row = self._row.numpy()
        if not row.size:
            return None
        spans = self._traces[int(row[0])]
        begins, ends = row[2:].reshape([2, len(spans)])
        return RecordedStep(
            number=int(row[1]),
            trace=int(row[0]),
            spans=spans,
            # A clock of a task that is computed once may be read late.
            times=tuple((float(min(b, e)), float(e)) for b, e in zip(begins, ends, strict=True)),
        )
