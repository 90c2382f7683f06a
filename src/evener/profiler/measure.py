"""Measured times of the layers of a step on a device.

Every layer is called alone with synthetic values, so only the weights and activations of one layer
are in memory at a time: a device can measure models that do not fit into it. Layers of one kind are
measured once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener.devices.names import tf_device
from evener.engine.partition.tasks import Task
from evener.engine.trace.step import TracedStep
from evener.errors import ProfileError
from evener.profile import Curve, LayerTimes
from evener.profiler.clock import Calls, Clock
from evener.profiler.device_speed import DeviceSpeed, measure_device
from evener.profiler.estimate import estimated_times
from evener.profiler.indices import index_limits
from evener.profiler.kinds import kind_of_rest, kinds_of
from evener.profiler.known import KnownTimes
from evener.profiler.split import LayerTasks, SplitStep, split_step
from evener.profiler.synthetic import NotMeasurableError, Values
from evener.profiler.workspace import measured_workspace

Progress = Callable[[int, int, str], object]
"""Callback with the number of finished layers, the number of all, and the name of the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Times of a step on a device.

    Attributes:
        layers: Times of every layer, in the order of the chain.
        overhead_seconds: Seconds per step outside the layers: metrics, counters.
        not_measured: Name and reason of each layer that could not be called alone; its times are
            estimated from its operations and bytes.
        in_step: Ratio of the time of all layers in one call to the sum of their times alone; 1 if
            it was not measured. The times of the layers include it.
    """

    layers: tuple[LayerTimes, ...]
    overhead_seconds: float
    not_measured: tuple[str, ...]
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
    """Return the times of a step on a device, layer by layer.

    Args:
        step: Step, traced with layers or already split.
        device: Name of the device, such as ``"gpu:0"``.
        batch_sizes: Numbers of samples to measure at, each above 0.
        progress: Callback before every layer.
        speed: Speed of the device, for layers that cannot be measured; None to measure it if
            needed.
        clock: Clock of the device; None for the real one.
        whole_at: Number of samples for which all layers fit into memory together. They are then
            also measured in one call, because a layer that is called repeatedly finds its weights
            in the cache. None to skip this.
        before: Earlier measurements of the device, which are reused; None if there are none.

    Raises:
        ProfileError: PROF-011 if the numbers of samples are missing or not above 0.
    """
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
            together = before.seconds(
                f"step {_digest(kinds)} at {whole_at}",
                functools.partial(measuring.together, split.layers, whole_at),
            )
            in_step = together / alone if alone else 1.0
    return StepTimes(
        layers=tuple(known[kind].scaled(in_step) for kind in kinds),
        in_step=in_step,
        overhead_seconds=before.seconds(
            f"rest {kind_of_rest(split)} at {sizes[0]}", measuring.rest
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
        """Return the times of a layer.

        Raises:
            NotMeasurableError: If it cannot be called alone.
        """
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
