"""Figures of a run, from its record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from evener.recording.activities import Activity, DeviceTime, activities, time_of
from evener.recording.reading import Line, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of a run; None where nothing was measured.

    Attributes:
        state: ``"ended"``, ``"failed"``, or ``"no end"`` of a run that goes on or was killed.
        seconds: Time from the first to the last line.
        num_samples: Samples that were trained on.
        samples_per_second: Median of the samples per second, without the first quarter.
        step_seconds: Median of the times from one step to the next, without the first quarter.
        predicted_step_seconds: Prediction of the plan.
        shares: Last share of each device.
        inside: Seconds of each device in a recorded step: the mean of the half of the steps whose
            lengths are nearest to the median, since others had disturbances of their own.
        inside_seconds: Median length of the recorded steps, from first to last task.
        num_steps: Number of recorded steps of the usual kind.
        losses: Last values of losses and metrics.
    """

    state: str
    seconds: float
    num_samples: int | None
    samples_per_second: float | None
    step_seconds: float | None
    predicted_step_seconds: float | None
    shares: Mapping[str, float]
    inside: Mapping[str, DeviceTime]
    inside_seconds: float | None
    num_steps: int
    losses: Mapping[str, float | str]

    def to_json(self) -> str:
        """Return the figures as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


def summarise(record: RunRecord) -> Summary:
    """Return the figures of a run.

    Args:
        record: Record of the run.
    """
    end = record.end
    lines = [*record.events, *record.metrics, *record.losses]
    steps = usual_steps(record)
    predicted = record.plan.predicted
    last = record.metrics[-1] if record.metrics else {}
    return Summary(
        state="no end" if end is None else "ended" if end["event"] == "end" else "failed",
        seconds=max((line["time"] for line in lines), default=0.0),
        num_samples=last.get("samples"),
        samples_per_second=_typical(record.metrics, "samples_per_second"),
        step_seconds=_typical(record.metrics, "step_seconds"),
        predicted_step_seconds=predicted.step_seconds if predicted else None,
        shares=dict(zip(record.devices, last.get("share", ()), strict=False)),
        inside=_inside(record, steps),
        inside_seconds=median(map(length_of, steps)) if steps else None,
        num_steps=len(steps),
        losses=_last_values(record),
    )


def usual_steps(record: RunRecord) -> list[Line]:
    """Return the recorded steps of the most frequent trace that trains, without its first one."""
    trained = [
        step
        for step in record.steps
        if any(span.get("kind") not in ("update", "once") for span in record.traces[step["of"]])
    ]
    counts = Counter(step["of"] for step in trained)
    usual = max(counts, key=counts.__getitem__, default=None)
    steps = [step for step in trained if step["of"] == usual]
    # The first step selects kernels and allocates memory.
    return steps[1:] if len(steps) > 1 else steps


def typical_step(record: RunRecord) -> dict[str, list[Activity]]:
    """Return the activities of the recorded step of median length; empty if there is none."""
    steps = sorted(usual_steps(record), key=length_of)
    if not steps:
        return {}
    step = steps[len(steps) // 2]
    return activities(record.traces[step["of"]], step)


def length_of(step: Line) -> float:
    """Return the seconds from the first begin to the last end of a recorded step."""
    return max(step["end"]) / 1e6


def _inside(record: RunRecord, steps: list[Line]) -> dict[str, DeviceTime]:
    of_device: dict[str, list[DeviceTime]] = {}
    for step in _middle_half(steps):
        for device, row in activities(record.traces[step["of"]], step).items():
            of_device.setdefault(device, []).append(time_of(row, length_of(step)))
    return {device: _mean(times) for device, times in of_device.items()}


def _middle_half(steps: list[Line]) -> list[Line]:
    ordered = sorted(steps, key=length_of)
    quarter = len(ordered) // 4
    return ordered[quarter : len(ordered) - quarter]


def _mean(times: list[DeviceTime]) -> DeviceTime:
    def of(name: str) -> float:
        return mean(getattr(time, name) for time in times)

    others = dict.fromkeys(other for time in times for other in time.wait)
    return DeviceTime(
        compute=of("compute"),
        update=of("update"),
        once=of("once"),
        copy=of("copy"),
        wait={other: mean(time.wait.get(other, 0.0) for time in times) for other in others},
        idle=of("idle"),
        length=of("length"),
    )


def _typical(metrics: tuple[Line, ...], name: str) -> float | None:
    values = [line[name] for line in metrics[len(metrics) // 4 :] if line.get(name)]
    return median(values) if values else None


def _last_values(record: RunRecord) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for line in record.losses:
        values.update(line.get("values", {}))
    return values
