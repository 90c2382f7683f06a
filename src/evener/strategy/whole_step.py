"""Time of a step on one device in one part, measured in the graph that it is part of.

::

    batch is there ──► forward, backward passes, updates ──► results and variables are there
       clock                                                   clock

Such a step is not traced by evener, and its operations stay as they are: clocks are read beside it.
On a CPU the step waits for the first clock, or a busy host would read it late.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private.devices import in_xla
from evener._tf_private.functions import trained_variables
from evener._tf_private.graphs import written_resources
from evener._tf_private.random_numbers import is_deterministic
from evener.devices.names import device_name
from evener.engine.partition.homes import HOST
from evener.engine.partition.span_info import STEP, SpanInfo
from evener.engine.partition.times import Recorder, clock_after
from evener.errors import DataError
from evener.strategy.arguments import Arguments, read_arguments


@tf.autograph.experimental.do_not_convert
def run_timed(
    run_once: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    device: str,
    recorder: Recorder,
) -> Any:
    """Run a step in the graph that is being made, and record its times if it trains.

    Steps without a batch, steps that XLA compiles together with their caller, and steps with
    operations that have to be deterministic are not timed.

    Args:
        run_once: Function that runs the step on ``args`` and ``kwargs``, and returns its results.
        args: Arguments of the step.
        kwargs: Keyword arguments of the step.
        device: Device on which it runs, such as ``"/device:GPU:0"``.
        recorder: Recorder of the begin of the step, its samples and its seconds.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    cannot_be_timed = is_deterministic() or in_xla(graph)
    found = None if cannot_be_timed else _with_batch((args, kwargs))
    if found is None:
        return run_once(args=args, kwargs=kwargs)
    began = clock_after(found.batch, device)
    if "CPU" in device:
        args, kwargs = found.waiting_for(began)
    first = len(graph.get_operations())
    with trained_variables() as trained:
        results = run_once(args=args, kwargs=kwargs)
    writes = _writes(graph, graph.get_operations()[first:], trained)
    if writes is None:
        return results
    tensors = tf.nest.flatten(results, expand_composites=True)
    ended = clock_after([*filter(tf.is_tensor, tensors), *writes], device)
    with tf.device(HOST):
        samples = tf.reshape(tf.cast(tf.shape(found.batch[0])[0], tf.float64), [1])
        recorder.record_totals(began, samples, {device: ended - began})
        if recorder.keeps_spans:
            span = SpanInfo(device=device_name(device), kind=STEP, replica=0)
            recorder.record_spans([span], tf.stack([[began], [ended]]))
    return results


@dataclasses.dataclass(frozen=True, slots=True)
class _Batch:
    """Arguments with tensors that have a row for each sample."""

    arguments: Arguments

    @property
    def batch(self) -> list[Any]:
        """The tensors with a row for each sample."""
        pairs = zip(self.arguments.tensors, self.arguments.axes, strict=True)
        return [tensor for tensor, axis in pairs if axis == 0]

    def waiting_for(self, begin: tf.Tensor) -> Any:
        """Return the nested arguments, whose tensors are there when a clock was read."""
        with tf.control_dependencies([begin]):
            return self.arguments.pack([*map(tf.identity, self.arguments.tensors)])


def _with_batch(arguments: Any) -> _Batch | None:
    """Return what is known of nested arguments; None if no tensor of them has samples."""
    try:
        found = _Batch(read_arguments(arguments))
    except DataError:
        return None
    return found if found.batch else None


def _writes(
    graph: Any, operations: Sequence[tf.Operation], trained: Sequence[tf.Variable]
) -> list[tf.Operation] | None:
    """Return the operations that write variables; None if they write none that is trained."""
    handles = {graph.capture(variable.handle).ref() for variable in trained}
    resources_of = written_resources
    written = {operation: resources_of(operation) for operation in operations}
    if not any(r.ref() in handles for resources in written.values() for r in resources):
        return None
    return [operation for operation, resources in written.items() if resources]
