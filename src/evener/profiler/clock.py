"""How long functions of tasks take on a device, without the time it takes to call them from Python.

A function that TensorFlow runs calls them again and again in a loop, each time after the last::

    seconds = (time of n rounds - time of one round) / (n - 1)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.partition.functions import Argument, TensorArgument
from evener.engine.partition.tasks import TaskFunction
from evener.engine.trace.graph import Tensor
from evener.tf_compat import graphs

_ROUND_SECONDS = 0.002
"""Loops of several calls are at least about so much longer than a loop of one."""
_LONG_SECONDS = 0.05
"""Against such a call, what it takes to start a loop does not count."""
_ENOUGH_SECONDS = 0.02
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 10
_MOST_CALLS = 2048
_LEAST_SECONDS = 1e-7


class Calls:
    """Calls of functions of tasks, one after another, as one function.

    Args:
        functions: In an order in which they can run; results of one may be arguments of others.
        device: TensorFlow's name of the device.

    Attributes:
        arguments: What has to be given: what none of them computes.
        results: The tensors of the step that the calls return.
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
        self.results = tuple(t for one in self._functions for t in one.task.fetches)
        shape: Any = None
        specs = [tf.TensorSpec(shape, dtype) for dtype in needed.values()]
        signature = [tf.TensorSpec([], tf.int32), *specs]
        self.loop: Callable[..., list[Any]] = tf.function(
            self._loop, input_signature=signature, autograph=False
        )

    def _loop(self, count: tf.Tensor, *arguments: Any) -> Any:
        """Call the functions so many times; return the results of the last time."""

        def again(number: tf.Tensor, *before: Any) -> Any:
            del before  # results are loop variables, so that TensorFlow computes all of them
            return number + 1, *self._once(arguments)

        with tf.device(self._device):
            first = (tf.constant(1), *self._once(arguments))
            return tf.while_loop(
                lambda number, *_: number < count, again, first, parallel_iterations=1
            )[1:]

    def _once(self, arguments: Sequence[Any]) -> list[Any]:
        given = dict(zip(self.arguments, arguments, strict=True))
        made: dict[Tensor, Any] = {}
        for function in self._functions:
            builder = function.builder
            values = [
                made[one.tensor]
                if isinstance(one, TensorArgument) and one.tensor in made
                else given[one]
                for one in builder.arguments
            ]
            results = graphs.call(
                builder.function, values, builder.outputs, stateful=function.is_stateful
            )
            made.update(zip(function.task.fetches, results, strict=True))
        return [made[tensor] for tensor in self.results]


class Clock:
    """Measures calls on a device.

    Args:
        device: TensorFlow's name of the device.
        now: Returns the time in seconds.
        wait: Waits until devices have computed all that they were asked to.
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
        """Return how many seconds calls take.

        The median of several times is taken, as a step takes one after the other: the least is
        that of a moment in which caches and memory happened to be at their best, for convolutions
        10 % less.

        Args:
            calls: What is called.
            arguments: For its arguments, in their order.
        """
        # The first call makes what all others use: traces, memory, kernels.
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
        del results  # freed when the time is taken, and not before
        return seconds
