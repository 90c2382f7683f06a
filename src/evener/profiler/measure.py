"""Measured times of the layers of a step on a device.

Every layer is called alone with synthetic values, so only one layer is in memory at a time: a
device can measure models that do not fit into it. Layers of one kind are measured once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
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
from evener.graph.nodes import Graph, Tensor, numbers
from evener.graph.ops.registry import operation
from evener.graph.trace import TracedStep
from evener.partition.functions import (
    Argument,
    InputArgument,
    NumberArgument,
    SumArgument,
    TensorArgument,
)
from evener.partition.memory import shape_of
from evener.partition.tasks import Task, TaskFunction
from evener.plan.profile import Curve, LayerCosts, LayerTimes
from evener.plan.profile_files import KnownTimes
from evener.profiler.device_speed import DeviceSpeed, estimated_times, measure_device
from evener.profiler.layers import (
    LayerTasks,
    LayerVariable,
    SplitStep,
    kind_of_rest,
    kinds_of,
    split_step,
)

# Seconds of task functions on a device, without the overhead of a call from Python.
#
# A loop inside a TensorFlow function calls them repeatedly, one call after the other::
#
#     seconds = (time of n rounds - time of one round) / (n - 1)

_ROUND_SECONDS = 0.002
"""Approximate least difference between a loop of several calls and a loop of one call."""
_LONG_SECONDS = 0.05
"""Seconds of a call beyond which the overhead of the loop is negligible."""
_ENOUGH_SECONDS = 0.02
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 10
_MOST_CALLS = 2048
_LEAST_SECONDS = 1e-7


class Calls:
    """Consecutive calls of task functions, as one function."""

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
    """Clock that measures calls on a device."""

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


# Workspace of kernels on a device, measured by its allocator.
#
# Convolutions, the gradient of max-pooling and other kernels allocate memory that is no tensor of
# the
# graph. While the results of a call are still alive::
#
#     workspace = peak - after

_ROUNDS = 3
"""Number of measurements, of which the median counts: other calls may free memory late."""


def measured_workspace(calls: Calls, arguments: Sequence[Any], device: str) -> int | None:
    """Return the bytes that calls need besides their arguments and results.

    It is the difference of two figures of the allocator, so what the allocator rounds up for
    results is not counted. The measurement resets the peak that TensorFlow keeps of the device.
    """
    found: list[int] = []
    for _ in range(1 + _ROUNDS):
        try:
            tf.config.experimental.reset_memory_stats(device)
        except ValueError:
            return None
        results = calls.loop(tf.constant(1), *arguments)
        tf.test.experimental.sync_devices()
        info = tf.config.experimental.get_memory_info(device)
        found.append(info["peak"] - info["current"])
        del results
    return round(statistics.median(found[1:]))


def with_workspace(costs: LayerCosts, measured: Sequence[Curve | None]) -> LayerCosts:
    """Return the costs of a layer with the measured workspace of the devices."""
    curves = [curve for curve in measured if curve is not None]
    if not curves:
        return costs
    sample_counts = sorted({samples for curve in curves for samples, _ in curve.points})
    most = tuple((samples, max(curve(samples) for curve in curves)) for samples in sample_counts)
    return dataclasses.replace(costs, kernel_workspace=Curve(most))


# Upper limits of the integers of a step that index rows of tables, or classes.
#
# ::
#
#     tokens ──Reshape──Cast──> GatherV2(table of 20,000 rows)      tokens < 20,000
#     labels ──────────> SparseSoftmaxCrossEntropy(10 classes)      labels < 10
#
# Measurements use random indices below the limit: a layer that always reads the same row would find
# it in the cache.


def index_limits(graph: Graph, shapes: Mapping[Tensor, tuple[int, ...]]) -> dict[Tensor, int]:
    """Return the exclusive upper limits of integer tensors, as far as they are known."""
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


# Synthetic values for the arguments of a task function, so that it can be called alone.
#
# ::
#
#     floats     small random numbers; those of variables are positive
#     integers   random below their limit if they index rows or classes; else 0, a valid index
#     bools      True
#     symbols    b and B are the number of samples, o is 0
#     variables  new variables of the same shape, freed after the call

_SCALE = 0.1


class NotMeasurableError(Exception):
    """Error: a function cannot be called with synthetic values; the message gives the reason."""


class Values:
    """Synthetic values of arguments; it keeps the variables among them alive."""

    def __init__(
        self,
        num_samples: int,
        variables: Mapping[Tensor, LayerVariable],
        limits: Mapping[Tensor, int] | None = None,
    ) -> None:
        self._limits = limits or {}
        self._num_samples = num_samples
        self._described = variables
        self._made: dict[Tensor, Any] = {}
        self._variables: dict[Tensor, tf.Variable] = {}

    def of(self, argument: Argument) -> Any:
        """Return the value of an argument."""
        if isinstance(argument, NumberArgument):
            (number,) = numbers([symbol(argument.name)], self._num_samples)
            return number
        assert not isinstance(argument, InputArgument)  # of functions within those of tasks
        tensor = argument.tensor
        if tensor not in self._made:
            shape = tensor.shape
            if not isinstance(argument, SumArgument):
                shape = shape_of(tensor, argument.state)
            self._made[tensor] = self._make(tensor, shape)
        return self._made[tensor]

    def _make(self, tensor: Tensor, shape: Any) -> Any:
        if tensor.dtype == tf.resource:
            return self._variable(tensor).handle
        if tensor.dtype in (tf.variant, tf.string):
            raise NotMeasurableError(f"it takes a tensor of dtype {tensor.dtype.name}")
        if shape is None:
            raise NotMeasurableError("it takes a tensor of unknown rank")
        sizes = numbers(shape, self._num_samples)
        if tensor in self._limits:
            limit = self._limits[tensor]
            made = tf.random.stateless_uniform(sizes, (1, 2), 0, limit, tf.int32)
            return tf.cast(made, tensor.dtype)
        return _filled(sizes, tensor.dtype)

    def _variable(self, handle: Tensor) -> tf.Variable:
        if handle not in self._described:
            raise NotMeasurableError("it uses a resource that is not a variable")
        if handle not in self._variables:
            variable = self._described[handle]
            value = _filled(variable.shape, variable.dtype)
            self._variables[handle] = tf.Variable(
                tf.abs(value) if variable.dtype.is_floating else value, trainable=False
            )
        return self._variables[handle]


def _filled(shape: Sequence[int], dtype: tf.DType) -> Any:
    if dtype.is_floating:
        made = tf.random.stateless_normal(shape, seed=(1, 2), stddev=_SCALE)
        return tf.cast(made, dtype)
    if dtype == tf.bool:
        return tf.ones(shape, dtype)
    return tf.zeros(shape, dtype)


# Measured times of the layers of a step on a device.
#
# Every layer is called alone with synthetic values, so only the weights and activations of one
# layer
# are in memory at a time: a device can measure models that do not fit into it. Layers of one kind
# are
# measured once.

Progress = Callable[[int, int, str], object]
"""Callback with the number of finished layers, the number of all, and the name of the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Times of a step on a device."""

    layers: tuple[LayerTimes, ...]  # Times of every layer, in the order of the chain
    overhead_seconds: float  # Seconds per step outside the layers: metrics, counters
    # Name and reason of each layer that could not be called alone; its times are estimated from its
    # operations and bytes
    not_measured: tuple[str, ...]
    # Ratio of the time of all layers in one call to the sum of their times alone; 1 if it was not
    # measured. The times of the layers include it
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
) -> StepTimes:
    """Return the times of a step on a device, layer by layer."""
    split = step if isinstance(step, SplitStep) else split_step(step, device=device)
    name = tf_device(device)
    sizes = _checked(batch_sizes)
    before = before or KnownTimes()
    measuring = _Measuring(split, clock, name, sizes)
    at = ", ".join(map(str, sizes))
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
                f"layer {kind} at {at}",
                functools.partial(measuring.layer, tasks),
                num_layers=counts[kind],
            )
        except NotMeasurableError as error:
            speed = speed or measure_device(device)
            reasons[kind] = str(error)
            known[kind] = estimated_times(tasks, speed, batch_sizes)
    in_step = 1.0
    if whole_at is not None and not reasons:
        alone = sum(known[k].forward(whole_at) + known[k].backward(whole_at) for k in kinds)
        with contextlib.suppress(NotMeasurableError):
            together = before.other(
                f"step {_digest(kinds)} at {whole_at}",
                functools.partial(measuring.together, split.layers, whole_at),
                float,
            )
            in_step = together / alone if alone else 1.0
    return StepTimes(
        layers=tuple(known[kind].scaled(in_step) for kind in kinds),
        in_step=in_step,
        overhead_seconds=before.other(
            f"rest {kind_of_rest(split)} at {sizes[0]}", measuring.rest, float
        ),
        not_measured=tuple(
            f"{layer}: {reasons[kind]}"
            for layer, kind in zip(split.chain.names, kinds, strict=True)
            if kind in reasons
        ),
    )


def _digest(kinds: Sequence[str]) -> str:
    return hashlib.sha256(" ".join(kinds).encode()).hexdigest()[:16]


def _checked(batch_sizes: Sequence[int]) -> list[int]:
    sizes = sorted(set(batch_sizes))
    if not sizes or sizes[0] < 1:
        raise ProfileError(
            "PROF-011",
            f"Layers cannot be measured at {list(batch_sizes)} samples.",
            why="A time as a function of samples needs at least one number of samples, and each "
            "of them must be above 0.",
            fix="Give for example batch_sizes=[1, 4, 16, 64].",
        )
    return sizes


class _Measuring:
    """Measurement of the layers of a step on a device."""

    def __init__(
        self, split: SplitStep, clock: Clock | None, device: str, batch_sizes: Sequence[int]
    ) -> None:
        self._split = split
        self._clock = clock
        self._device = device
        self._batch_sizes = batch_sizes
        self._variables = {variable.handle: variable for variable in split.variables}
        shapes = {variable.handle: variable.shape for variable in split.variables}
        self._limits = index_limits(split.traced.graph, shapes)

    def layer(self, tasks: LayerTasks) -> LayerTimes:
        """Return the times of a layer."""
        forward = self._calls(tasks.forward)
        # Fused call of both passes: backward kernels reuse what forward kernels cache for them.
        both = self._calls((*tasks.forward, *tasks.backward)) if tasks.backward else forward
        sizes = self._batch_sizes
        first = _curve([(size, self._run(forward, size)) for size in sizes])
        whole = first
        if both is not forward:
            whole = _curve([(size, self._run(both, size)) for size in sizes])
        backward = _difference(whole, first)
        separate = self._calls(tasks.backward)
        update = self._run(self._calls(tasks.once), sizes[0])
        return LayerTimes(
            forward=first,
            backward=backward,
            backward_separate=self._separate(separate, backward),
            update_seconds=update,
            workspace=self._workspace(
                [calls for calls in (forward, separate) if calls is not None]
            ),
        )

    def _separate(self, calls: Calls | None, fused: Curve) -> Curve | None:
        """Return the backward seconds in a separate call, as most stages run it.

        oneDNN max-pooling caches its workspace only within one call, so in a separate call its
        gradient pools again. A separate time below the fused one is noise.
        """
        if calls is None:
            return None
        try:
            took = [(size, self._run(calls, size)) for size in self._batch_sizes]
            return _curve([(size, max(seconds, fused(size))) for size, seconds in took])
        except NotMeasurableError:
            return None

    def _workspace(self, passes: Sequence[Calls]) -> Curve | None:
        """Return the measured workspace, the maximum over the passes."""
        points: list[tuple[float, float]] = []
        try:
            for num_samples in self._batch_sizes:
                found = [self._workspace_of(calls, num_samples) for calls in passes]
                if None in found:
                    return None
                points.append((num_samples, max((size or 0 for size in found), default=0)))
        except NotMeasurableError:
            return None
        return Curve(tuple(points))

    def _workspace_of(self, calls: Calls, num_samples: int) -> int | None:
        arguments, _variables = self._arguments(calls, num_samples)
        with _not_measurable_if_refused():
            return measured_workspace(calls, arguments, self._device)

    def together(self, layers: Sequence[LayerTasks], num_samples: int) -> float:
        """Return the seconds of both passes of all layers in one call."""
        tasks = [task for layer in layers for task in layer.forward]
        tasks += [task for layer in reversed(layers) for task in layer.backward]
        return self._run(self._calls(tasks), num_samples)

    def rest(self) -> float:
        """Return the seconds outside the layers, as far as they can be measured.

        They include one call from Python per step, which the times of layers exclude.
        """
        self._clock = self._clock or Clock(self._device)
        total = self._clock.overhead
        for task in self._split.rest:
            try:
                total += self._run(self._calls([task]), self._batch_sizes[0])
            except NotMeasurableError:
                continue
        return total

    def _calls(self, tasks: Sequence[Task]) -> Calls | None:
        functions = [self._split.build(task) for task in tasks]
        # If the value of a read were kept, every write would copy the variable.
        functions = [
            function
            for function in functions
            if not (function.is_stateful and function.is_read_only)
        ]
        return Calls(functions, self._device) if functions else None

    def _run(self, calls: Calls | None, num_samples: int) -> float:
        """Return the seconds of calls with ``num_samples`` samples."""
        if calls is None:
            return 0.0
        arguments, _variables = self._arguments(calls, num_samples)
        self._clock = self._clock or Clock(self._device)
        with _not_measurable_if_refused():
            return self._clock.measure(calls, arguments)

    def _arguments(self, calls: Calls, num_samples: int) -> tuple[list[Any], Values]:
        """Return the argument values of calls, and the object that keeps their variables alive."""
        values = Values(num_samples, self._variables, self._limits)
        with tf.device(self._device):
            return [values.of(argument) for argument in calls.arguments], values


@contextlib.contextmanager
def _not_measurable_if_refused() -> Iterator[None]:
    """Raise `NotMeasurableError` if operations reject synthetic values.

    Operations that gather rows by computed indices do, such as the RMSprop update of an embedding.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        raise NotMeasurableError("its operations reject synthetic values") from error


def _curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Return the curve of measured points, without obvious noise.

    Interference only adds time, so make the curve monotone: no point is above one with more
        samples.
    """
    least = math.inf
    kept: list[tuple[float, float]] = []
    for samples, seconds in reversed(points):
        least = min(least, seconds)
        kept.append((samples, least))
    return Curve(tuple(reversed(kept)))


def _difference(both: Curve, first: Curve) -> Curve:
    """Return the seconds of the second of two passes, from those of both in one call."""
    pairs = zip(both.points, first.points, strict=True)
    return _curve([(samples, max(total - own, 0.0)) for (samples, total), (_, own) in pairs])
