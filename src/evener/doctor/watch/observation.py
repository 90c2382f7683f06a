"""Observation of a run of a program: plain values, made in a subprocess."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Outcome(enum.Enum):
    """End of a watched run."""

    ENOUGH = "enough"  # enough steps were seen, and the doctor ended it
    FINISHED = "finished"  # it came to its own end
    EXITED = "exited"  # it called sys.exit or os._exit
    CRASHED = "crashed"  # an exception, or a signal
    TIMED_OUT = "timed out"  # it reached the time limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of user code.

    Args:
        file: The absolute path.
        line: Line number, from 1.
    """

    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An exception that ended the program.

    Args:
        kind: Its class.
        message: Its text, at most a few thousand characters.
        where: Innermost line of user code.
        code: The code, if it is one of evener's errors.
    """

    kind: str
    message: str
    where: Line | None
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A `tf.function` of the program.

    Args:
        name: Its name.
        where: Line of its definition.
        num_calls: Number of calls.
        num_traces: Number of traces.
        num_made: Number of functions made from the same lines.
        arguments: Arguments of the last traces, abbreviated.
    """

    name: str
    where: Line | None
    num_calls: int
    num_traces: int
    num_made: int = 1
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRead:
    """A line that brings tensors to the host.

    Args:
        where: The line.
        num_reads: Number of reads in the watched steps.
        seconds: Total waiting time.
    """

    where: Line
    num_reads: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Durations of training steps, without those that trace.

    Args:
        num_steps: Number of all steps.
        step_seconds: Median duration of a step, from batch to batch.
        input_seconds: Median time in a step that waits for the next batch.
        where: The line that takes the step: ``fit``, or the call in a loop.
        batch_size: The samples of the first batch; 0 if not known.
        num_replicas: Number of replicas of the strategy; 1 without a strategy.
    """

    num_steps: int
    step_seconds: float
    input_seconds: float
    where: Line | None = None
    batch_size: int = 0
    num_replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Observation of one run.

    Args:
        outcome: End of the run.
        seconds: Duration of the run.
        exit_code: Exit code of the process; None if the doctor ended it.
        raised: Exception that ended it, if it crashed.
        where: The line it was at when it was ended, or exited.
        steps: The training steps; None if there was none.
        traced: The program's `tf.function`s.
        host_reads: Lines that brought tensors to the host in the loop over batches.
        output_tail: End of its output.
        still_seconds: Seconds from the last step to the end; without steps, of the whole run.
        missed: Functions that could not be watched, with the reasons.
        notes: Notes about the run, such as answers given in place of TensorFlow.
    """

    outcome: Outcome
    seconds: float
    exit_code: int | None = None
    raised: Raised | None = None
    where: Line | None = None
    steps: Steps | None = None
    traced: tuple[Traced, ...] = ()
    host_reads: tuple[HostRead, ...] = ()
    output_tail: str = ""
    still_seconds: float = 0.0
    missed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
