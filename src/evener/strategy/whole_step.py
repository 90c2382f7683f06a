"""How long a step on one device in one part takes, measured in the graph that it is part of.

::

    batch is there ──► forward, backward passes, updates ──► results and variables are there
       clock                                                   clock

Such a step is not traced by evener, and what it computes stays as it is: clocks are read beside
it. On a CPU the step waits for the first of them, or a busy host would read it late.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.engine.partition.homes import HOST
from evener.engine.partition.times import Recorder, read_clock
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
        run_once: Runs the step on ``args`` and ``kwargs``, and returns its results.
        args: Arguments of the step.
        kwargs: Keyword arguments of the step.
        device: On which it runs, such as ``"/device:GPU:0"``.
        recorder: Takes the begin of the step, its samples and its seconds.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    cannot_be_timed = _tf_private.random_numbers.is_deterministic() or _tf_private.devices.in_xla(
        graph
    )
    found = None if cannot_be_timed else _with_batch((args, kwargs))
    if found is None:
        return run_once(args=args, kwargs=kwargs)
    began = _clock_after(found.batch, device)
    if "CPU" in device:
        args, kwargs = found.waiting_for(began)
    first = len(graph.get_operations())
    with _tf_private.functions.trained_variables() as trained:
        results = run_once(args=args, kwargs=kwargs)
    writes = _writes(graph, graph.get_operations()[first:], trained)
    if writes is None:
        return results
    tensors = tf.nest.flatten(results, expand_composites=True)
    ended = _clock_after([*filter(tf.is_tensor, tensors), *writes], device)
    with tf.device(HOST):
        samples = tf.reshape(tf.cast(tf.shape(found.batch[0])[0], tf.float64), [1])
        recorder.record_totals(began, samples, {device: ended - began})
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
            return self.arguments.pack([tf.identity(one) for one in self.arguments.tensors])


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
    written = [(one, _tf_private.graphs.written_resources(one)) for one in operations]
    if not any(resource.ref() in handles for _, some in written for resource in some):
        return None
    return [one for one, some in written if some]


def _clock_after(waits: Sequence[Any], device: str) -> tf.Tensor:
    """Read the clock once tensors are there and operations have run, on a device or elsewhere."""
    # One message to the host from each device. Identities stay when functions are inlined.
    of_device: dict[str, list[Any]] = {}
    for one in waits:
        of_device.setdefault(one.device or device, []).append(one)
    done: list[Any] = []
    for name, some in of_device.items():
        with tf.device(name):
            reached = [tf.identity(one) if tf.is_tensor(one) else one for one in some]
            with tf.control_dependencies(reached):
                done.append(tf.no_op())
    return read_clock(done)
