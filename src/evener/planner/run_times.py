"""Measured times of a run, and their deviation from the prediction of its plan."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from evener.base.records import from_plain
from evener.base.text import format_seconds
from evener.errors import PlanError, ProfileError
from evener.plan.parts import Predicted
from evener.plan.plan import Plan

LEAST_STEPS = 20
"""Least number of timed steps of a usable run."""

NUM_FIRST_STEPS = 5
"""Number of first steps that are not timed: they trace, select kernels and allocate memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    began: float  # Start of its first forward pass, in seconds
    samples: tuple[int, ...]  # Samples of each replica of the plan
    busy_seconds: tuple[float, ...]  # Seconds that each device computed forward and backward passes
    trace: int = 0  # Number of the traced step, from 0; a program may train several models

    @property
    def kind(self) -> tuple[int, tuple[int, ...]]:
        """A key that is equal for steps of the same expected time."""
        return self.trace, self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    num_steps: int  # Number of timed steps, without the first ones
    samples: tuple[int, ...]  # Samples of each replica of the plan in each of these steps
    step_seconds: float  # Seconds from the start of a step to the start of the next
    busy_seconds: Mapping[str, float]  # Seconds of forward and backward passes by device name
    hardware: Mapping[str, str]  # Hardware name by device name
    # Whether the busy seconds include updates, as on one device without micro-batches
    with_updates: bool = False

    @property
    def batch_size(self) -> int:
        return sum(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    plan: Plan  # Plan of the run, either given or made from devices and shares
    times: RunTimes  # Step times


def run_times(
    records: Sequence[StepRecord],
    devices: Sequence[str],
    hardware: Mapping[str, str],
    *,
    with_updates: bool = False,
) -> RunTimes | None:
    """Return the times of the most frequent kind of step; None without two timed steps."""
    counts = Counter(record.kind for record in records)
    usual = max(sorted(counts), key=counts.__getitem__, default=None)
    # A step ends when the next one starts.
    timed = [
        (record, after.began - record.began)
        for record, after in itertools.pairwise(records)
        if record.kind == usual
    ]
    if not timed or usual is None:
        return None
    busy = zip(*(record.busy_seconds for record, _ in timed), strict=True)
    return RunTimes(
        num_steps=len(timed),
        samples=usual[1],
        step_seconds=median(seconds for _, seconds in timed),
        busy_seconds=dict(zip(devices, map(median, busy), strict=True)),
        hardware=dict(hardware),
        with_updates=with_updates,
    )


def read_run(path: Path) -> MeasuredRun:
    """Return the run of a report file, or of the output of ``evener run --json``."""
    try:
        text = path.read_text(encoding="utf-8")
        try:
            fields: Any = json.loads(text)
        except ValueError:
            # The output of the script and of evener precedes the report.
            fields = json.loads((text.strip().splitlines() or [""])[-1])
        plan = Plan.from_json(json.dumps(fields["plan"]))
        steps = fields["steps"]
        num_steps = 0 if steps is None else from_plain(steps["num_steps"], int)
        if num_steps >= LEAST_STEPS:
            return MeasuredRun(plan=plan, times=from_plain(steps, RunTimes, place="steps"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        problem = error.what if isinstance(error, PlanError) else f"{type(error).__name__}: {error}"
        raise ProfileError(
            "PROF-050",
            f"{path} holds no report of a run.",
            why=f"{problem}.",
            fix=f"Write one: evener run --report-file {path} SCRIPT, with the script of the plan.",
        ) from None
    raise ProfileError(
        "PROF-051",
        f"The run of {path} timed {num_steps} steps; at least {LEAST_STEPS} are needed.",
        why=f"The first {NUM_FIRST_STEPS} steps of a run are not timed, nor are steps with "
        "deterministic operations and eager steps; nor, on one device in one part, steps that "
        "are no call of strategy.run or fit.",
        fix="Run more steps.",
    )


TOLERANCE = 0.15
"""Tolerated error, as a fraction of the predicted step time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviatingPart:
    device: str | None  # Device that computes; None for everything but computation
    predicted_seconds: float  # Prediction of the plan
    measured_seconds: float  # Seconds in the median step
    with_updates: bool = False  # Whether the busy time of devices includes updates

    def __str__(self) -> str:
        """Return one sentence without a full stop.

        >>> print(DeviatingPart(device="gpu:1", predicted_seconds=0.08, measured_seconds=0.124))
        gpu:1 computed for 124.0 ms of a step, and 80.0 ms were predicted
        """
        measured = format_seconds(self.measured_seconds)
        predicted = format_seconds(self.predicted_seconds)
        if self.device is not None:
            computed = "computed passes and updates" if self.with_updates else "computed"
            what = f"{self.device} {computed} for"
        elif self.with_updates:
            what = "waiting for data and for Python took"
        else:
            what = "communication, updates and waiting (for other devices, for data) took"
        return f"{what} {measured} of a step, and {predicted} were predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    predicted_seconds: float  # Predicted seconds of a step
    measured_seconds: float  # Seconds of the median step
    num_steps: int  # Number of timed steps
    worst: DeviatingPart | None  # Part with the largest error; None if the plan predicts no parts

    @property
    def what(self) -> str:
        return (
            f"A step took {format_seconds(self.measured_seconds)}, and the plan predicted "
            f"{format_seconds(self.predicted_seconds)}."
        )

    @property
    def why(self) -> str:
        """The part of the prediction with the largest error."""
        steps = f"Median of {self.num_steps} steps."
        if self.worst is None:
            return f"{steps} The plan does not predict how long each device computes."
        return f"{steps} What differs most: {self.worst}."


def deviation(predicted: Predicted, times: RunTimes | None) -> Deviation | None:
    """Return the deviation of a run from a prediction, or None if there is none to report.

    ::

        step   |  a device computes (busy)  |  everything else: transfers of weights, gradients,  |
               |                            |  devices wait for each other and for data, updates  |

    The part with the largest difference is reported: the busy time of a device, or everything else
    on the device that computes longest. On one device without micro-batches, passes and updates are
    timed together, and the plan has no prediction for the second part::

        step   |  the device computes and updates variables  |  waiting for data and for Python  |
    """
    if times is None or times.num_steps < LEAST_STEPS or predicted.step_seconds <= 0:
        return None
    if predicted.batch_size not in (None, times.batch_size):
        return None
    if abs(times.step_seconds - predicted.step_seconds) <= TOLERANCE * predicted.step_seconds:
        return None
    measured: Mapping[str, float] = times.busy_seconds
    expected: Mapping[str, float] = predicted.busy_seconds
    if times.with_updates:
        expected = dict.fromkeys(measured, predicted.step_seconds)
    seconds: dict[str | None, tuple[float, float]] = {}
    if expected and measured:
        seconds.update({name: (each, measured.get(name, 0.0)) for name, each in expected.items()})
        seconds[None] = (
            max(0.0, predicted.step_seconds - max(expected.values())),
            max(0.0, times.step_seconds - max(measured.values())),
        )
    parts = [
        DeviatingPart(
            device=name,
            predicted_seconds=of_plan,
            measured_seconds=of_run,
            with_updates=times.with_updates,
        )
        for name, (of_plan, of_run) in seconds.items()
    ]
    return Deviation(
        predicted_seconds=predicted.step_seconds,
        measured_seconds=times.step_seconds,
        num_steps=times.num_steps,
        worst=max(
            parts,
            key=lambda part: abs(part.measured_seconds - part.predicted_seconds),
            default=None,
        ),
    )
