"""Seconds of task functions on a device, without the overhead of a call from Python.

A loop inside a TensorFlow function calls them repeatedly, one call after the other::

    seconds = (time of n rounds - time of one round) / (n - 1)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private import graphs
from evener.engine.partition.functions import Argument, TensorArgument
from evener.engine.partition.tasks import TaskFunction
from evener.graph.nodes import Tensor

_ROUND_SECONDS = 0.002
"""Approximate least difference between a loop of several calls and a loop of one call."""
_LONG_SECONDS = 0.05
"""Seconds of a call beyond which the overhead of the loop is negligible."""
_ENOUGH_SECONDS = 0.02
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 10
_MOST_CALLS = 2048
_LEAST_SECONDS = 1e-7


class Calls:
    """Consecutive calls of task functions, as one function.

    Args:
        functions: Task functions in topological order.
        device: TensorFlow name of the device.

    Attributes:
        arguments: Arguments that none of the functions computes.
        results: Tensors of the step that the calls return.
    """

    def __init__(self, functions: Sequence[TaskFunction], device: str) -> None:
        self._functions = list(functions)
        self._device = device
        made: set[Tensor] = set()
        needed: dict[Argument, tf.DType] = {}
        for function in self._functions:
            for argument, reference in function.builder.arguments.items():
                if not (isinstance(argument, TensorArgument) and argument.tensor in made):
                    needed.setdefault(argument, function.builder.dtype_of(reference))
            made.update(function.task.fetches)
        self.arguments = tuple(needed)
        self.results = tuple(t for function in self._functions for t in function.task.fetches)
        shape: Any = None
        specs = [tf.TensorSpec(shape, dtype) for dtype in needed.values()]
        signature = [tf.TensorSpec([], tf.int32), *specs]
        self.loop: Callable[..., list[Any]] = tf.function(
            self._loop, input_signature=signature, autograph=False
        )

    def _loop(self, count: tf.Tensor, *arguments: Any) -> Any:
        """Call the functions ``count`` times; return the results of the last round."""

        def run_calls(number: tf.Tensor, *before: Any) -> Any:
            del before  # results are loop variables, so that TensorFlow computes all of them
            return number + 1, *self._once(arguments)

        with tf.device(self._device):
            first = (tf.constant(1), *self._once(arguments))
            return tf.while_loop(
                lambda number, *_: number < count, run_calls, first, parallel_iterations=1
            )[1:]

    def _once(self, arguments: Sequence[Any]) -> list[Any]:
        given = dict(zip(self.arguments, arguments, strict=True))
        made: dict[Tensor, Any] = {}
        for function in self._functions:
            builder = function.builder
            values = [
                made[argument.tensor]
                if isinstance(argument, TensorArgument) and argument.tensor in made
                else given[argument]
                for argument in builder.arguments
            ]
            results = graphs.call(
                builder.function, values, builder.outputs, stateful=function.is_stateful
            )
            made.update(zip(function.task.fetches, results, strict=True))
        return [made[tensor] for tensor in self.results]


class Clock:
    """Clock that measures calls on a device.

    Args:
        device: TensorFlow name of the device.
        now: Function that returns the time in seconds.
        wait: Function that waits until the devices are idle.
    """

    def __init__(
        self,
        device: str,
        *,
        now: Callable[[], float] = time.perf_counter,
        wait: Callable[[], Any] = tf.test.experimental.sync_devices,
    ) -> None:
        self._now = now
        self._wait = wait
        self.overhead = 0.0
        empty = Calls([], device)
        self.overhead = statistics.median(self._timed(empty, 1, ()) for _ in range(21))

    def measure(self, calls: Calls, arguments: Sequence[Any]) -> float:
        """Return the seconds of calls.

        It is the median of several runs. The minimum is too optimistic for consecutive steps: with
        favourable caches, convolutions take 10 % less.

        Args:
            calls: Calls to measure.
            arguments: Values of their arguments, in order.
        """
        # The first call traces, allocates memory and selects kernels.
        self._timed(calls, 1, arguments)
        once = [self._timed(calls, 1, arguments) for _ in range(_LEAST_ROUNDS)]
        if min(once) > _LONG_SECONDS:
            return statistics.median(once) - self.overhead
        count = 2
        several = [self._timed(calls, count, arguments)]
        while several[0] < min(once) + _ROUND_SECONDS / 2 and count < _MOST_CALLS:
            count *= 4
            several = [self._timed(calls, count, arguments)]
        rounds = round(_ENOUGH_SECONDS / several[0])
        for _ in range(max(_LEAST_ROUNDS, min(_MOST_ROUNDS, rounds))):
            once.append(self._timed(calls, 1, arguments))
            several.append(self._timed(calls, count, arguments))
        longer = statistics.median(several) - statistics.median(once)
        return max(longer / (count - 1), _LEAST_SECONDS)

    def _timed(self, calls: Calls, count: int, arguments: Sequence[Any]) -> float:
        given = tf.constant(count)
        self._wait()
        begin = self._now()
        results = calls.loop(given, *arguments)
        self._wait()
        seconds = self._now() - begin
        del results  # freed after the measurement, not during it
        return seconds
