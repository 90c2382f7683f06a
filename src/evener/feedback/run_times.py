"""What a run measured of its steps, and how the file of its report is read.

``evener run --report-file FILE`` writes the file; a text whose last line is such an object, as
``evener run --json`` prints it, is read too.
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
"""With fewer timed steps, a run says nothing."""

NUM_FIRST_STEPS = 5
"""The first steps trace, choose kernels and allocate memory: they are not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One training step, as it was timed.

    Args:
        began: When its first forward pass began, in seconds.
        samples: Of each replica of the plan.
        busy_seconds: Of each device: how long it computed forward and backward passes.
        trace: Which trace of which step it was, from 0: programs may train several models.
    """

    began: float
    samples: tuple[int, ...]
    busy_seconds: tuple[float, ...]
    trace: int = 0

    @property
    def kind(self) -> tuple[int, tuple[int, ...]]:
        """What steps have in common that should take the same time."""
        return self.trace, self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """The times of the steps of a run: medians over its last steps with the same samples.

    Args:
        num_steps: How many were timed, without the first.
        samples: Of each replica of the plan in each of these steps.
        step_seconds: From the begin of a step to that of the next.
        busy_seconds: Device name to the seconds in which it computed forward and backward passes.
        hardware: Device name to the name of its hardware.
        with_updates: Whether the busy seconds are those of passes and updates together, as on one
            device in one part.
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
    """A run: its plan, and the times of its steps.

    Args:
        plan: As the run was given it, or as it was made of devices and shares.
        times: Of its steps.
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

    Only the steps of one trace with the same samples count, those of which there are most; of
    several, the first. So the last batch of an epoch is left out, and so is a second model.

    Args:
        records: Of its steps, in order, without the first.
        devices: The names of the devices of `StepRecord.busy_seconds`.
        hardware: See `RunTimes`.
        with_updates: See `RunTimes`.

    >>> steps = [StepRecord(began=k / 10, samples=(3, 1), busy_seconds=(0.08,)) for k in range(9)]
    >>> found = run_times(steps, ["gpu:0"], {})
    >>> found.num_steps, found.batch_size, round(found.step_seconds, 6), found.busy_seconds
    (8, 4, 0.1, {'gpu:0': 0.08})
    """
    counts = Counter(record.kind for record in records)
    usual = max(sorted(counts), key=counts.__getitem__, default=None)
    # A step lasts until the next one begins.
    timed = [
        (one, after.began - one.began)
        for one, after in itertools.pairwise(records)
        if one.kind == usual
    ]
    if not timed or usual is None:
        return None
    busy = zip(*(one.busy_seconds for one, _ in timed), strict=True)
    return RunTimes(
        num_steps=len(timed),
        samples=usual[1],
        step_seconds=median(seconds for _, seconds in timed),
        busy_seconds=dict(zip(devices, map(median, busy), strict=True)),
        hardware=dict(hardware),
        with_updates=with_updates,
    )


def read_run(path: Path) -> MeasuredRun:
    """Return the run whose report is in a file.

    Raises:
        ProfileError: PROF-050 if the file holds no report of a run, PROF-051 if the run timed too
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
        # What the script and evener said stands before the report.
        lines = text.strip().splitlines() or [""]
        return cast("dict[str, Any]", json.loads(lines[-1]))


def _read(fields: Mapping[str, Any], place: str) -> MeasuredRun:
    plan = Plan.from_json(json.dumps(fields["plan"]))
    steps = cast("dict[str, Any]", fields["steps"] or {"num_steps": 0})
    num_steps = int(steps["num_steps"])
    if num_steps < LEAST_STEPS:
        raise ProfileError(
            "PROF-051",
            f"The run of {place} timed {num_steps} steps; at least {LEAST_STEPS} are needed.",
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
            busy_seconds={name: float(one) for name, one in steps["busy_seconds"].items()},
            hardware={str(name): str(one) for name, one in steps["hardware"].items()},
            with_updates=bool(steps.get("with_updates", False)),
        ),
    )
