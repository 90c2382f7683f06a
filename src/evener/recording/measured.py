"""Work that a strategy has counted, as lines of metrics and steps; and the memory in use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from evener.devices.names import kind_of, tf_device, without_worker
from evener.strategy import Strategy
from evener.strategy.shares import RecordedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The GPU memory that TensorFlow uses, now and at its peak, in bytes."""

    current_bytes: int
    peak_bytes: int


def gpu_memory(device: str) -> MemoryUse | None:
    """Return the memory in use on a GPU of this process; None for a CPU, and other workers'."""
    if without_worker(device) != device or not kind_of(device).has_own_memory:
        return None
    info: Mapping[str, int] = tf.config.experimental.get_memory_info(device.upper())
    return MemoryUse(current_bytes=info["current"], peak_bytes=info["peak"])


def shares_of_devices(strategy: Strategy) -> dict[str, float]:
    """Return the fraction of every batch that each device computes, in one or several stages."""
    shares: dict[str, float] = {}
    for replica, share in zip(strategy.plan.replicas, strategy.shares, strict=True):
        for device in dict.fromkeys(stage.device for stage in replica.stages):
            shares[device] = shares.get(device, 0.0) + share
    return shares


def count_work(strategy: Strategy) -> None:
    """Let a strategy count samples and busy seconds of all devices, before its first step."""
    if not strategy.share_controller.counts:
        strategy.share_controller.count([tf_device(name) for name in shares_of_devices(strategy)])


class Measured:
    """Rates between two readings of the totals of a strategy, which counts its work."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._controller = strategy.share_controller
        self._at = 0.0
        self._samples = 0
        self._busy: dict[str, float] = {}

    def line(self, now: float) -> dict[str, Any]:
        """Return what was measured since the last call."""
        controller = self._strategy.share_controller
        if controller is not self._controller:
            # A trial of plans uses others, with totals of their own.
            self._controller, self._samples, self._busy = controller, 0, {}
        samples, busy = sum(controller.total_samples()), controller.busy_seconds()
        seconds = max(now - self._at, 1e-9)
        shares = shares_of_devices(self._strategy)
        # The devices of other workers are measured there.
        own = {n for n in shares if self._strategy.name_in_plan(without_worker(n)) == n}
        memory = [gpu_memory(without_worker(name)) if name in own else None for name in shares]
        busy_fractions: list[float | None] = []
        for name in shares:
            device = tf_device(name)
            if name in own and device in busy:
                fraction = (busy[device] - self._busy.get(device, 0.0)) / seconds
                busy_fractions.append(_short(fraction))
            else:
                busy_fractions.append(None)
        last = controller.step_records()[-10:]
        step_seconds = (last[-1].began - last[0].began) / (len(last) - 1) if len(last) > 1 else None
        line = {
            "time": round(now, 3),
            "samples": samples,
            "samples_per_second": _short((samples - self._samples) / seconds),
            "step_seconds": _short(step_seconds),
            "share": [_short(share) for share in shares.values()],
            "busy": busy_fractions,
            "memory": [use and use.current_bytes for use in memory],
            "memory_peak": [use and use.peak_bytes for use in memory],
            "process_bytes": resident_bytes(),
        }
        self._at, self._samples, self._busy = now, samples, busy
        return line


def trace_line(step: RecordedStep, number: int) -> dict[str, Any]:
    """Return the line that describes the spans of a traced step, under a number."""
    spans = [
        {
            "device": span.device,
            "kind": span.kind,
            "replica": span.replica,
            "stage": span.stage,
            "micro_batch": span.micro_batch,
            "after": list(span.after),
            "joins": span.joins or None,
        }
        for span in step.spans
    ]
    known = [{name: value for name, value in s.items() if value is not None} for s in spans]
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
