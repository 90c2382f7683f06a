"""Work that a strategy has counted: samples, busy seconds, memory in use.

One source of the numbers that the live view, `Progress`, reports and records of runs show.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from evener.devices.names import kind_of, tf_device, without_worker
from evener.strategy import Strategy
from evener.strategy.shares import RecordedStep, ShareController


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    current_bytes: int
    peak_bytes: int


def gpu_memory(device: str) -> MemoryUse | None:
    """Return the memory in use on a GPU of this process; None for a CPU, and other workers'."""
    if without_worker(device) != device or not kind_of(device).has_own_memory:
        return None
    info: Mapping[str, int] = tf.config.experimental.get_memory_info(device.upper())
    return MemoryUse(current_bytes=info["current"], peak_bytes=info["peak"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    num_variables: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """The work of one device since training began, and the variables it owns.

    Args:
        device: Name of the device.
        share: Fraction of every batch that it computes now; None for a device that only owns
            variables.
        num_samples: The samples it has trained on; None if they are not counted.
        busy_seconds: The duration of its forward and backward passes; None if they are not
            timed.
        owned: The variables it owns.
        memory: The memory that TensorFlow uses there; None if unknown, as for a CPU.
    """

    device: str
    share: float | None
    num_samples: int | None
    busy_seconds: float | None
    owned: Owned
    memory: MemoryUse | None = None


def work_of_devices(
    shares: Mapping[str, float],
    samples: Mapping[str, int],
    seconds: Mapping[str, float],
    owned: Mapping[str, Owned],
) -> tuple[DeviceWork, ...]:
    """Return the work of each device that computes or owns variables; what is missing is None."""
    return tuple(
        DeviceWork(
            device=name,
            share=shares.get(name),
            num_samples=samples.get(name),
            busy_seconds=seconds.get(name),
            owned=owned.get(name, Owned()),
            memory=gpu_memory(name),
        )
        for name in dict.fromkeys([*shares, *owned])
    )


def owned_by_device(strategy: Strategy) -> dict[str, Owned]:
    owned: dict[str, Owned] = {}
    for variable in strategy.owner_registry.variables:
        device = strategy.name_in_plan(variable.device)
        before = owned.get(device, Owned())
        owned[device] = Owned(
            num_variables=before.num_variables + 1, num_bytes=before.num_bytes + variable.num_bytes
        )
    return owned


def shares_of_devices(strategy: Strategy) -> dict[str, float]:
    """Return the fraction of every batch that each device computes, in one or several stages."""
    return _sum_by_device(strategy, strategy.shares)


def _sum_by_device(strategy: Strategy, figures: Sequence[float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for replica, figure in zip(strategy.plan.replicas, figures, strict=True):
        for device in dict.fromkeys(stage.device for stage in replica.stages):
            sums[device] = sums.get(device, 0) + figure
    return sums


def is_own_device(strategy: Strategy, name: str) -> bool:
    """Return whether a device of the plan is in this process; others are measured there."""
    return strategy.name_in_plan(without_worker(name)) == name


def count_work(strategy: Strategy) -> None:
    """Let a strategy count samples and busy seconds of all devices, before its first step."""
    if not strategy.share_controller.counts:
        strategy.share_controller.count([tf_device(name) for name in shares_of_devices(strategy)])


class CountedWork:
    """Samples and busy seconds of a strategy's devices since its begin or the last reading `anew`.

    Nothing is counted by a strategy that does not count, by eager steps, and where operations have
    to be deterministic.
    """

    def __init__(self, strategy: Strategy, *, from_now: bool = True) -> None:
        self._strategy = strategy
        self._before: tuple[ShareController | None, Sequence[int], Mapping[str, float]]
        self._before = None, (), {}
        if from_now:
            self.read(anew=True)

    def read(self, *, anew: bool = False) -> tuple[int, dict[str, int], dict[str, float]]:
        """Return the samples of all, and the samples and the busy seconds by device.

        Without samples, none are known of any device. ``anew``: then begin to count anew.
        """
        controller = self._strategy.share_controller
        samples: tuple[int, ...] = ()
        seconds: dict[str, float] = {}
        if controller.counts:
            samples, seconds = controller.total_samples(), controller.busy_seconds()
        before, samples_before, seconds_before = self._before
        if anew:
            self._before = controller, samples, seconds
        # A trial of plans uses several controllers, with totals of their own.
        if controller is before and samples_before:
            samples = tuple(now - then for now, then in zip(samples, samples_before, strict=True))
            seconds = {name: now - seconds_before[name] for name, now in seconds.items()}
        strategy = self._strategy
        own = [name for name in shares_of_devices(strategy) if is_own_device(strategy, name)]
        busy = {name: seconds[tf_device(name)] for name in own if tf_device(name) in seconds}
        if not any(samples):
            return 0, {}, busy
        counts = _sum_by_device(strategy, samples)
        return sum(samples), {name: int(count) for name, count in counts.items()}, busy


class Measured:
    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._work = CountedWork(strategy, from_now=False)
        self._at = 0.0

    def line(self, now: float) -> dict[str, Any]:
        controller = self._strategy.share_controller
        num_samples, _, busy = self._work.read(anew=True)
        seconds, self._at = max(now - self._at, 1e-9), now
        shares = shares_of_devices(self._strategy)
        own = {name for name in shares if is_own_device(self._strategy, name)}
        memory = [gpu_memory(without_worker(name)) if name in own else None for name in shares]
        last = controller.step_records()[-10:]
        step_seconds = (last[-1].began - last[0].began) / (len(last) - 1) if len(last) > 1 else None
        return {
            "time": round(now, 3),
            "samples": sum(controller.total_samples()),
            "samples_per_second": _short(num_samples / seconds),
            "step_seconds": _short(step_seconds),
            "share": [_short(share) for share in shares.values()],
            "busy": [_short(busy[name] / seconds) if name in busy else None for name in shares],
            "memory": [use and use.current_bytes for use in memory],
            "memory_peak": [use and use.peak_bytes for use in memory],
            "process_bytes": resident_bytes(),
        }


def trace_line(step: RecordedStep, number: int) -> dict[str, Any]:
    names = ("device", "kind", "replica", "stage", "micro_batch", "after", "joins")
    spans = [{name: getattr(span, name) for name in names} for span in step.spans]
    # A span without a stage has none in the file either, and most join nothing.
    known = [{k: v for k, v in s.items() if v is not None and v is not False} for s in spans]
    return {"trace": number, "spans": known}


def step_line(step: RecordedStep, trace: int, now: float) -> dict[str, Any]:
    """Return the line of one step: begins and ends in microseconds since its first begin."""
    first = min(begin for begin, _ in step.times)

    def since(times: Sequence[float]) -> list[int]:
        return [round((at - first) * 1e6) for at in times]

    return {
        "time": round(now, 3),
        "step": step.number,
        "of": trace,
        "begin": since([begin for begin, _ in step.times]),
        "end": since([end for _, end in step.times]),
    }


def resident_bytes() -> int | None:
    """Return the memory of this process on the host; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _short(value: float | None) -> float | None:
    """Return a number with few digits, for a file of many."""
    return None if value is None else float(f"{value:.4g}")
