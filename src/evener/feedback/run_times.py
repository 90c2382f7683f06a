"""Measured step times of a run, and the reader of its report file.

``evener run --report-file FILE`` writes the file. The output of ``evener run --json``, whose last
line is such an object, is accepted too.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from evener.errors import PlanError, ProfileError
from evener.plan.plan import Plan

LEAST_STEPS = 20
"""Least number of timed steps of a usable run."""

NUM_FIRST_STEPS = 5
"""Number of first steps that are not timed: they trace, select kernels and allocate memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Times of one training step.

    Args:
        began: Start of its first forward pass, in seconds.
        samples: Samples of each replica of the plan.
        busy_seconds: Seconds that each device computed forward and backward passes.
        trace: Number of the traced step, from 0; a program may train several models.
    """

    began: float
    samples: tuple[int, ...]
    busy_seconds: tuple[float, ...]
    trace: int = 0

    @property
    def kind(self) -> tuple[int, tuple[int, ...]]:
        """A key that is equal for steps of the same expected time."""
        return self.trace, self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """Step times of a run: medians over its last steps with the same samples.

    Args:
        num_steps: Number of timed steps, without the first ones.
        samples: Samples of each replica of the plan in each of these steps.
        step_seconds: Seconds from the start of a step to the start of the next.
        busy_seconds: Seconds of forward and backward passes by device name.
        hardware: Hardware name by device name.
        with_updates: Whether the busy seconds include updates, as on one device without
            micro-batches.
    """

    num_steps: int
    samples: tuple[int, ...]
    step_seconds: float
    busy_seconds: Mapping[str, float]
    hardware: Mapping[str, str]
    with_updates: bool = False

    @property
    def batch_size(self) -> int:
        """The samples of the global batch."""
        return sum(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Run with its plan and step times.

    Args:
        plan: Plan of the run, either given or made from devices and shares.
        times: Step times.
    """

    plan: Plan
    times: RunTimes


def run_times(
    records: Sequence[StepRecord],
    devices: Sequence[str],
    hardware: Mapping[str, str],
    *,
    with_updates: bool = False,
) -> RunTimes | None:
    """Return the times of a run, or None if fewer than two steps were timed.

    Only the most frequent combination of trace and samples counts; the first one of several. This
    excludes the last batch of an epoch, and a second model.

    Args:
        records: Records of its steps in order, without the first ones.
        devices: Device names of `StepRecord.busy_seconds`.
        hardware: Hardware name by device name.
        with_updates: Whether the busy seconds include updates.

    >>> steps = [StepRecord(began=k / 10, samples=(3, 1), busy_seconds=(0.08,)) for k in range(9)]
    >>> found = run_times(steps, ["gpu:0"], {})
    >>> found.num_steps, found.batch_size, round(found.step_seconds, 6), found.busy_seconds
    (8, 4, 0.1, {'gpu:0': 0.08})
    """
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
    """Return the run of a report file.

    Raises:
        ProfileError: PROF-050 if the file is not a report of a run, PROF-051 if the run timed too
            few steps.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return _read(_object_in(text), str(path))
    except ProfileError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, PlanError) as error:
        problem = error.what if isinstance(error, PlanError) else f"{type(error).__name__}: {error}"
        raise ProfileError(
            "PROF-050",
            f"{path} holds no report of a run.",
            why=f"{problem}.",
            fix="Write one: evener run --plan PLAN --report-file FILE train.py.",
        ) from None


def _object_in(text: str) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", json.loads(text))
    except ValueError:
        # The output of the script and of evener precedes the report.
        lines = text.strip().splitlines() or [""]
        return cast("dict[str, Any]", json.loads(lines[-1]))


def _read(fields: Mapping[str, Any], source: str) -> MeasuredRun:
    plan = Plan.from_json(json.dumps(fields["plan"]))
    steps = cast("dict[str, Any]", fields["steps"] or {"num_steps": 0})
    num_steps = int(steps["num_steps"])
    if num_steps < LEAST_STEPS:
        raise ProfileError(
            "PROF-051",
            f"The run of {source} timed {num_steps} steps; at least {LEAST_STEPS} are needed.",
            why=f"The first {NUM_FIRST_STEPS} steps of a run are not timed, nor are steps with "
            "deterministic operations and eager steps; nor, on one device in one part, steps that "
            "are no call of strategy.run or fit.",
            fix="Run more steps.",
        )
    return MeasuredRun(
        plan=plan,
        times=RunTimes(
            num_steps=num_steps,
            samples=tuple(map(int, steps["samples"])),
            step_seconds=float(steps["step_seconds"]),
            busy_seconds={name: float(seconds) for name, seconds in steps["busy_seconds"].items()},
            hardware={str(name): str(text) for name, text in steps["hardware"].items()},
            with_updates=bool(steps.get("with_updates", False)),
        ),
    )
