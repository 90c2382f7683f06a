"""Measured times of the layers of a step on a device.

Every layer is called alone with synthetic values, so only one layer is in memory at a time: a
device can measure models that do not fit into it. Layers of one kind are measured once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener._tf_private import graphs
from evener.devices.names import tf_device
from evener.errors import ProfileError
from evener.graph.dims import Size, symbol
from evener.graph.functions import (
    Argument,
    InputArgument,
    NumberArgument,
    SumArgument,
    TensorArgument,
)
from evener.graph.nodes import Graph, Tensor, numbers
from evener.graph.ops.registry import operation
from evener.graph.trace import TracedStep
from evener.partition.memory import shape_of
from evener.partition.tasks import StepTask, TaskFunction
from evener.plan.profile import Curve, LayerCosts, LayerTimes
from evener.plan.profile_files import KnownTimes
from evener.profiler.device_speed import DeviceSpeed, estimated_times, measure_device
from evener.profiler.layers import (
    LayerTasks,
    LayerVariable,
    SplitStep,
    kinds_of,
    split_step,
    work_signature,
)

_ROUND_SECONDS = 0.002
"""Approximate least difference between a loop of several calls and a loop of one call."""

_LONG_SECONDS = 0.05
"""Seconds of a call beyond which the overhead of the loop is negligible."""

_ENOUGH_SECONDS = 0.02
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 10
_MOST_CALLS = 2048
_LEAST_SECONDS = 1e-7

_WORKSPACE_ROUNDS = 3
"""Number of measurements, of which the median counts: other calls may free memory late."""

_SCALE = 0.1

Progress = Callable[[int, int, str], object]
"""Callback with the number of finished layers, the number of all, and the name of the next."""


class NotMeasurableError(Exception):
    """Error: a function cannot be called with synthetic values; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    layers: tuple[LayerTimes, ...]  # Times of every layer, in the order of the chain.
    overhead_seconds: float  # Seconds per step outside the layers: metrics, counters.
    # Name and reason of each layer that could not be called alone; its times are estimated.
    not_measured: tuple[str, ...]
    # Ratio of the time of all layers in one call to the sum of their times alone; 1 if it was not
    # measured. The times of the layers include it.
    in_step: float = 1.0


def measure_step(
    step: TracedStep | SplitStep,
    device: str,
    batch_sizes: Sequence[int],
    *,
    progress: Progress | None = None,
    speed: DeviceSpeed | None = None,
    clock: Clock | None = None,
    whole_at: int | None = None,
    before: KnownTimes | None = None,
) -> MeasuredTimes:
    """Return the times of a step on a device, layer by layer.

    At ``whole_at`` samples, for which all layers fit into memory together, they are also measured
    in one call, because a layer that is called repeatedly finds its weights in the cache. The
    ``speed`` of the device is for layers that cannot be measured.
    """
    split = step if isinstance(step, SplitStep) else split_step(step, device=device)
    sizes = sorted(set(batch_sizes))
    if not sizes or sizes[0] < 1:
        raise ProfileError(
            "PROF-011",
            f"Layers cannot be measured at {list(batch_sizes)} samples.",
            why="A time as a function of samples needs at least one number of samples, and each "
            "of them must be above 0.",
            fix="Give for example batch_sizes=[1, 4, 16, 64].",
        )
    before = before or KnownTimes()
    measurement = _LayerMeasurement(split, clock, tf_device(device), sizes)
    known: dict[str, LayerTimes] = {}
    reasons: dict[str, str] = {}
    kinds = kinds_of(split)
    counts = Counter(kinds)
    for number, (kind, tasks) in enumerate(zip(kinds, split.layers, strict=True)):
        if progress is not None:
            progress(number, len(kinds), split.chain.names[number])
        if kind in known:
            continue
        try:
            known[kind] = before.layer(
                f"layer {kind} at {', '.join(map(str, sizes))}",
                functools.partial(measurement.layer, tasks),
                num_layers=counts[kind],
            )
        except NotMeasurableError as error:
            speed = speed or measure_device(device)
            reasons[kind] = str(error)
            known[kind] = estimated_times(tasks, speed, batch_sizes)
    in_step = 1.0
    if whole_at is not None and not reasons:
        alone = sum(known[k].forward(whole_at) + known[k].backward(whole_at) for k in kinds)
        digest = hashlib.sha256(" ".join(kinds).encode()).hexdigest()[:16]
        with contextlib.suppress(NotMeasurableError):
            together = before.other(
                f"step {digest} at {whole_at}",
                functools.partial(measurement.together, whole_at),
                float,
            )
            in_step = together / alone if alone else 1.0
    return MeasuredTimes(
        layers=tuple(known[kind].scaled(in_step) for kind in kinds),
        in_step=in_step,
        overhead_seconds=before.other(
            f"rest {work_signature(split, (split.rest,))} at {sizes[0]}", measurement.rest, float
        ),
        not_measured=tuple(
            f"{layer}: {reasons[kind]}"
            for layer, kind in zip(split.chain.names, kinds, strict=True)
            if kind in reasons
        ),
    )


class _LayerMeasurement:
    def __init__(
        self, split: SplitStep, clock: Clock | None, device: str, batch_sizes: Sequence[int]
    ) -> None:
        self._split, self._clock, self._device = split, clock, device
        self._batch_sizes = batch_sizes
        self._variables = {variable.handle: variable for variable in split.variables}
        shapes = {variable.handle: variable.shape for variable in split.variables}
        self._limits = index_limits(split.traced.graph, shapes)

    def layer(self, tasks: LayerTasks) -> LayerTimes:
        """Return the times of a layer, or raise NotMeasurableError."""
        sizes = self._batch_sizes
        forward, separate = self._calls(tasks.forward), self._calls(tasks.backward)
        first = [(size, self._seconds(forward, size)) for size in sizes]
        whole = first
        if tasks.backward:
            # Fused call of both passes: backward kernels reuse what forward kernels cache for them.
            both = self._calls((*tasks.forward, *tasks.backward))
            whole = [(size, self._seconds(both, size)) for size in sizes]
        forward_curve = _curve(first)
        pairs = zip(_curve(whole).points, forward_curve.points, strict=True)
        backward = _curve([(size, max(total - own, 0.0)) for (size, total), (_, own) in pairs])
        update_seconds = self._seconds(self._calls(tasks.once), sizes[0])
        backward_separate = None
        if separate is not None:
            # oneDNN max-pooling caches its workspace only within one call, so in a separate call
            # its gradient pools again. A separate time below the fused one is noise.
            with contextlib.suppress(NotMeasurableError):
                took = [(size, self._seconds(separate, size)) for size in sizes]
                backward_separate = _curve([(n, max(each, backward(n))) for n, each in took])
        return LayerTimes(
            forward=forward_curve,
            backward=backward,
            backward_separate=backward_separate,
            update_seconds=update_seconds,
            workspace=self._workspace([calls for calls in (forward, separate) if calls]),
        )

    def together(self, num_samples: int) -> float:
        tasks = [task for layer in self._split.layers for task in layer.forward]
        tasks += [task for layer in reversed(self._split.layers) for task in layer.backward]
        return self._seconds(self._calls(tasks), num_samples)

    def rest(self) -> float:
        """Return the seconds outside the layers, as far as they can be measured."""
        self._clock = self._clock or Clock(self._device)
        total = self._clock.overhead
        for task in self._split.rest:
            with contextlib.suppress(NotMeasurableError):
                total += self._seconds(self._calls([task]), self._batch_sizes[0])
        return total

    def _calls(self, tasks: Sequence[StepTask]) -> Calls | None:
        functions = [self._split.build(task) for task in tasks]
        # If the value of a read were kept, every write would copy the variable.
        functions = [f for f in functions if not (f.is_stateful and f.is_read_only)]
        return Calls(functions, self._device) if functions else None

    def _seconds(self, calls: Calls | None, num_samples: int) -> float:
        if calls is None:
            return 0.0
        self._clock = self._clock or Clock(self._device)
        with self._arguments(calls, num_samples) as arguments:
            return self._clock.measure(calls, arguments)

    def _workspace(self, passes: Sequence[Calls]) -> Curve | None:
        points: list[tuple[float, float]] = []
        for num_samples in self._batch_sizes:
            most = 0
            for calls in passes:
                try:
                    with self._arguments(calls, num_samples) as arguments:
                        size = measured_workspace(calls, arguments, self._device)
                except NotMeasurableError:
                    return None
                if size is None:
                    return None
                most = max(most, size)
            points.append((num_samples, most))
        return Curve(tuple(points))

    @contextlib.contextmanager
    def _arguments(self, calls: Calls, num_samples: int) -> Iterator[list[Any]]:
        """Yield the argument values of calls, and keep their variables alive meanwhile."""
        values = SyntheticValues(num_samples, self._variables, self._limits)
        with tf.device(self._device):
            arguments = [values.value(argument) for argument in calls.arguments]
        try:
            yield arguments
        except tf.errors.InvalidArgumentError as error:
            raise NotMeasurableError("its operations reject synthetic values") from error
        finally:
            del values


def _curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Return the curve of measured points, without obvious noise."""
    least = list(itertools.accumulate((seconds for _, seconds in reversed(points)), min))
    pairs = zip((samples for samples, _ in points), reversed(least), strict=True)
    return Curve(tuple(pairs))


class Calls:
    """Consecutive calls of task functions in topological order, as one function."""

    def __init__(self, functions: Sequence[TaskFunction], device: str) -> None:
        self._functions, self._device = list(functions), device
        made: set[Tensor] = set()
        needed: dict[Argument, tf.DType] = {}
        for function in self._functions:
            for argument, reference in function.builder.arguments.items():
                if not (isinstance(argument, TensorArgument) and argument.tensor in made):
                    needed.setdefault(argument, function.builder.dtype_of(reference))
            made.update(function.task.fetches)
        # Arguments that none of the functions computes, and the tensors that the calls return.
        self.arguments = tuple(needed)
        self.results = tuple(t for function in self._functions for t in function.task.fetches)
        shape: Any = None
        specs = [tf.TensorSpec(shape, dtype) for dtype in needed.values()]
        self.loop: Callable[..., list[Any]] = tf.function(
            self._loop, input_signature=[tf.TensorSpec([], tf.int32), *specs], autograph=False
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
        outside = dict(zip(self.arguments, arguments, strict=True))
        made: dict[Tensor, Any] = {}
        for function in self._functions:
            builder = function.builder
            values = [
                made[argument.tensor]
                if isinstance(argument, TensorArgument) and argument.tensor in made
                else outside[argument]
                for argument in builder.arguments
            ]
            results = graphs.call(
                builder.function, values, builder.outputs, stateful=function.is_stateful
            )
            made.update(zip(function.task.fetches, results, strict=True))
        return [made[tensor] for tensor in self.results]


class Clock:
    """Clock that measures calls on a device, without the overhead of a call from Python.

    A loop inside a TensorFlow function calls them repeatedly, one call after the other::

        seconds = (time of n rounds - time of one round) / (n - 1)
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
        empty = Calls([], device)
        self.overhead = statistics.median(self._timed(empty, 1, ()) for _ in range(21))

    def measure(self, calls: Calls, arguments: Sequence[Any]) -> float:
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
        rounds = tf.constant(count)
        self._wait()
        begin = self._now()
        results = calls.loop(rounds, *arguments)
        self._wait()
        seconds = self._now() - begin
        del results  # freed after the measurement, not during it
        return seconds


def measured_workspace(calls: Calls, arguments: Sequence[Any], device: str) -> int | None:
    """Return the bytes of the allocator beyond arguments and results of calls; None if unknown."""
    sizes: list[int] = []
    # The first call traces, and is not counted.
    for _ in range(1 + _WORKSPACE_ROUNDS):
        try:
            tf.config.experimental.reset_memory_stats(device)
        except ValueError:
            return None
        results = calls.loop(tf.constant(1), *arguments)
        tf.test.experimental.sync_devices()
        info = tf.config.experimental.get_memory_info(device)
        sizes.append(info["peak"] - info["current"])
        del results
    return round(statistics.median(sizes[1:]))


def with_workspace(costs: LayerCosts, measured: Sequence[Curve | None]) -> LayerCosts:
    curves = [curve for curve in measured if curve is not None]
    return dataclasses.replace(costs, kernel_workspace=Curve.most(curves)) if curves else costs


def index_limits(graph: Graph, shapes: Mapping[Tensor, tuple[int, ...]]) -> dict[Tensor, int]:
    """Return the exclusive upper limits of integers that index rows of tables, or classes.

    ::

        tokens ──Reshape──Cast──> GatherV2(table of 20,000 rows)      tokens < 20,000
        labels ──────────> SparseSoftmaxCrossEntropy(10 classes)      labels < 10

    Measurements use random indices below the limit: a layer that always reads the same row would
    find it in the cache.
    """
    limits: dict[Tensor, int] = {}

    def lower(tensor: Tensor, limit: Size | None) -> None:
        is_data = tensor.dtype.is_integer and not tensor.is_sizes
        if is_data and isinstance(limit, int) and limit > 0:
            limits[tensor] = min(limit, limits.get(tensor, limit))

    for node in reversed(list(graph)):
        known = operation(node.op)
        if known.index_limit is not None:
            lower(*known.index_limit(node, shapes))
        # ``i + n``, which wraps negative indices, is assumed to be unused.
        if known.index_inputs is not None and node.outputs[0] in limits:
            for tensor in node.inputs[known.index_inputs]:
                lower(tensor, limits[node.outputs[0]])
    return limits


class SyntheticValues:
    """Synthetic values of arguments; it keeps the variables among them alive.

    ::

        floats     small random numbers; those of variables are positive
        integers   random below their limit if they index rows or classes; else 0, a valid index
        bools      True
        symbols    b and B are the number of samples, o is 0
        variables  new variables of the same shape, freed after the call
    """

    def __init__(
        self,
        num_samples: int,
        variables: Mapping[Tensor, LayerVariable],
        limits: Mapping[Tensor, int] | None = None,
    ) -> None:
        self._num_samples = num_samples
        self._described = variables
        self._limits = limits or {}
        self._values: dict[Tensor, Any] = {}
        self._variables: list[tf.Variable] = []

    def value(self, argument: Argument) -> Any:
        """Return the value of an argument, or raise NotMeasurableError."""
        if isinstance(argument, NumberArgument):
            (number,) = numbers([symbol(argument.name)], self._num_samples)
            return number
        assert not isinstance(argument, InputArgument)  # of functions within those of tasks
        tensor = argument.tensor
        if tensor not in self._values:
            is_sum = isinstance(argument, SumArgument)
            shape = tensor.shape if is_sum else shape_of(tensor, argument.state)
            self._values[tensor] = self._make(tensor, shape)
        return self._values[tensor]

    def _make(self, tensor: Tensor, shape: Any) -> Any:
        if tensor.dtype == tf.resource:
            if tensor not in self._described:
                raise NotMeasurableError("it uses a resource that is not a variable")
            described = self._described[tensor]
            value = _filled(described.shape, described.dtype)
            value = tf.abs(value) if described.dtype.is_floating else value
            self._variables.append(tf.Variable(value, trainable=False))
            return self._variables[-1].handle
        if tensor.dtype in (tf.variant, tf.string):
            raise NotMeasurableError(f"it takes a tensor of dtype {tensor.dtype.name}")
        if shape is None:
            raise NotMeasurableError("it takes a tensor of unknown rank")
        sizes = numbers(shape, self._num_samples)
        if tensor in self._limits:
            limit = self._limits[tensor]
            indices = tf.random.stateless_uniform(sizes, (1, 2), 0, limit, tf.int32)
            return tf.cast(indices, tensor.dtype)
        return _filled(sizes, tensor.dtype)


def _filled(shape: Sequence[int], dtype: tf.DType) -> Any:
    if dtype.is_floating:
        return tf.cast(tf.random.stateless_normal(shape, seed=(1, 2), stddev=_SCALE), dtype)
    return tf.ones(shape, dtype) if dtype == tf.bool else tf.zeros(shape, dtype)
