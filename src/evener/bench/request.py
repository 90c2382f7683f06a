"""Request to a process of a benchmark, and its answer: JSON on its command line and in a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

Kind = Literal["evener", "mirrored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """A script to run for some steps.

    Args:
        target: Path of a script, or name of a module.
        is_module: Whether it is a module.
        args: Command line arguments of the script.
        kind: ``"evener"``, or ``"mirrored"`` for TensorFlow's `MirroredStrategy`.
        devices: Device spec; None for ``EVENER_DEVICES``, else all.
        shares: ``"even"``, or None for shares that are measured while training.
        plan: Plan as JSON; excludes ``shares``. Empty for none.
        jit_compile: Value of ``jit_compile`` for ``Model.compile``; None for that of the script.
        num_warm_up: Steps before the first that is timed.
        num_steps: Steps to time.
        answer: Path of the file for the answer.
        record: Folder for a record of the run; empty for none.
    """

    target: str
    is_module: bool = False
    args: tuple[str, ...] = ()
    kind: Kind = "evener"
    devices: str | None = None
    shares: str | None = None
    plan: str = ""
    jit_compile: bool | None = None
    num_warm_up: int = 10
    num_steps: int = 40
    answer: str = ""
    record: str = ""

    def to_json(self) -> str:
        """Return the request as the process reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TimedRun:
        """Return the request that a text of `to_json` holds."""
        fields = json.loads(text)
        return cls(**{**fields, "args": tuple(fields["args"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Answer of a process.

    Args:
        seconds: Time of each timed step.
        batch_size: Samples of a step; None if unknown.
        problem: Reason why no step was timed; empty if there are some.
    """

    seconds: tuple[float, ...] = ()
    batch_size: int | None = None
    problem: str = ""

    def to_json(self) -> str:
        """Return the answer as the parent reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StepTimes:
        """Return the answer that a text of `to_json` holds."""
        fields = json.loads(text)
        return cls(**{**fields, "seconds": tuple(fields["seconds"])})
