"""What a run of a program has shown: plain values, made in another process."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Outcome(enum.Enum):
    """How a watched run ended."""

    ENOUGH = "enough"  # enough steps were seen, and it was ended
    FINISHED = "finished"  # it came to its own end
    EXITED = "exited"  # it called sys.exit or os._exit
    CRASHED = "crashed"  # an exception, or a signal
    TIMED_OUT = "timed out"  # it took longer than it was given


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the person's own code.

    Args:
        file: The absolute path.
        line: From 1.
    """

    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An exception that ended the program.

    Args:
        kind: Its class.
        message: Its text, at most a few thousand characters.
        where: The innermost line of the person's own.
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
        where: Where it is defined.
        num_calls: How often it was called.
        num_traces: How often it was traced.
        num_made: How many functions were made of the same lines.
        arguments: What the arguments were at the last traces, shortly.
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
        num_reads: How often it did, in the steps seen.
        seconds: How long it waited in all.
    """

    where: Line
    num_reads: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """How long training steps took, those without tracing.

    Args:
        num_steps: How many steps were taken in all.
        step_seconds: The median of whole steps, from batch to batch.
        input_seconds: The median of waiting for the next batch, part of the step.
        where: The line that takes the step: ``fit``, or the call in a loop.
        batch_size: The samples of the first batch; 0 if not known.
        num_replicas: Of the strategy that was used; 1 without one.
    """

    num_steps: int
    step_seconds: float
    input_seconds: float
    where: Line | None = None
    batch_size: int = 0
    num_replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that was seen of a run.

    Args:
        outcome: How it ended.
        seconds: How long it ran.
        exit_code: Of the process; None if it was ended by us.
        raised: What ended it, if it crashed.
        where: The line it was at when it was ended, or exited.
        steps: The training steps; None if there was none.
        traced: The program's `tf.function`s.
        host_reads: Lines that brought tensors to the host in the loop over batches.
        output_tail: The end of what it printed.
        still_seconds: How long before the end the last step was; without steps, the whole run.
        missed: What could not be watched, and why.
        notes: What was said of the program, such as what was answered in place of TensorFlow.
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
