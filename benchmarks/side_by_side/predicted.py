"""One model in one process: profiled once, then trained under many plans, in turns.

Stand-ins are logical CPUs of one thread each. They share TensorFlow's threads, so the process is
held to as many cores as a plan has devices, and to one while it is profiled: a device that
computes alone must not take two cores.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import statistics
import time
from dataclasses import dataclass
from typing import Any

from side_by_side import contenders
from side_by_side.layouts import DEVICES, MODELS, NUM_DEVICES, PLANS
from side_by_side.problems import make_loss, make_optimizer

_UNTIMED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Prediction of the cost model for a plan.

    Attributes:
        seconds: Seconds of a step.
        core_seconds: Busy seconds of a step, all devices added up.
        terms: Terms of the time of the slowest replica, in seconds, by name.
        num_devices: Number of devices that compute.
    """

    seconds: float
    core_seconds: float
    terms: dict[str, float]
    num_devices: int


class Planned:
    """A model that is trained under several plans.

    Args:
        model: A name of `MODELS`.
        optimizer: A name of `make_optimizer`.
    """

    def __init__(self, *, model: str, optimizer: str) -> None:
        contenders.stand_ins(NUM_DEVICES)
        self._trained = MODELS[model]
        self._optimizer = optimizer
        self._profile: Any = None
        self._fits: dict[str, Any] = {}
        self._num_devices: dict[str, int] = {}

    def profile(self, *, by_processor: bool) -> dict[str, Any]:
        """Measure what the layers cost on one core; return milliseconds for a whole batch.

        Args:
            by_processor: Whether the processor's time is taken, which others hardly lengthen.
        """
        import tensorflow as tf

        from evener.devices import resolve_devices
        from evener.profiler.profile import profile_step, trace_keras_step

        used = resolve_devices(DEVICES)
        x, y = self._trained.batch()
        specs = [tf.TensorSpec(array.shape[1:], array.dtype) for array in (x, y)]
        size = self._trained.batch_size
        with _cores(1), _processor_time() if by_processor else contextlib.nullcontext():
            traced = trace_keras_step(self._make, *specs)
            self._profile, not_measured = profile_step(traced, used, size)
        ((_, times),) = self._profile.times.items()
        return {
            "layers": {
                layer.name: [1e3 * t for t in (times.forward(size), times.backward(size))]
                + [1e3 * times.update_seconds]
                for layer, times in zip(self._profile.model.layers, times, strict=True)
            },
            "overhead_ms": 1e3 * self._profile.step_overhead_seconds,
            "not_measured": not_measured,
        }

    def profile_json(self) -> str:
        """Return what was measured."""
        from evener.plan.profile_files import profile_to_json

        return profile_to_json(self._profile)

    def prepare(self, name: str) -> Expected:
        """Predict a plan, and take the first steps under it."""
        import tensorflow as tf

        import evener
        from evener.planner.assignment import assignment_of
        from evener.planner.prediction import predict_plan, update_seconds

        plan = PLANS[name](self._trained)
        found = predict_plan(plan, self._profile, self._trained.batch_size)
        strategy = evener.Strategy(plan)
        with strategy.scope():
            model = self._make()
        data = tf.data.Dataset.from_tensors(self._trained.batch()).repeat()

        def fit(num_steps: int, *callbacks: Any) -> None:
            model.fit(data, steps_per_epoch=num_steps, verbose=0, callbacks=list(callbacks))

        self._fits[name] = fit
        self._num_devices[name] = len(_computing(plan))
        fit(2)
        slowest = found.slowest
        profile, size = self._profile, self._trained.batch_size
        assignment = assignment_of(plan, profile.model, profile.cluster, size)
        updates = update_seconds(assignment, profile)
        passes = [seconds for replica in found.replicas for seconds in replica.busy_seconds]
        return Expected(
            seconds=found.step_seconds,
            core_seconds=sum(passes) + sum(updates.values()) + profile.step_overhead_seconds,
            terms={
                "compute": slowest.compute_seconds,
                "bubble": slowest.bubble_seconds,
                "exchange": slowest.communication_seconds,
                "update": slowest.update_seconds,
            },
            num_devices=self._num_devices[name],
        )

    def run(self, name: str, num_steps: int) -> tuple[float, float]:
        """Train under a plan; return the median seconds of a step, and its mean core-seconds."""
        clock = contenders.step_clock()
        with _cores(self._num_devices[name]):
            self._fits[name](_UNTIMED + num_steps, clock)
        ends = clock.ends[_UNTIMED - 1 :]
        walls = [b.wall - a.wall for a, b in itertools.pairwise(ends)]
        core = (ends[-1].processor - ends[0].processor) / num_steps
        return statistics.median(walls), core

    def _make(self) -> Any:
        import keras

        keras.utils.set_random_seed(1)
        model = self._trained.chain.build()
        model.compile(make_optimizer(self._optimizer), make_loss(), jit_compile=False)
        return model


def _computing(plan: Any) -> set[str]:
    return {stage.device for replica in plan.replicas for stage in replica.stages}


def _cores(count: int) -> Any:
    """Hold all threads of this process to so many cores."""
    from evener.profiler.profile import affinity, held_to

    return held_to(sorted(affinity())[-count:])


@contextlib.contextmanager
def _processor_time() -> Any:
    """Have the clocks of the cost model read the processor's time."""
    from evener.profiler import measure

    before = measure.Clock
    measure.Clock = functools.partial(before, now=time.process_time)
    try:
        yield
    finally:
        measure.Clock = before
