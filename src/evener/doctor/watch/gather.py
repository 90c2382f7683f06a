"""Turns the events of a watched process into an `Observation`."""

from __future__ import annotations

import json
import signal
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from evener.base.user_code import is_own
from evener.doctor.watch.observation import (
    HostRead,
    Line,
    Observation,
    Outcome,
    Raised,
    Steps,
    Traced,
)
from evener.doctor.watch.stacks import innermost_in_dump

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Facts about a run that its parent process knows.

    Args:
        seconds: Duration of the run.
        timed_out: Whether it was ended at the time limit.
        status: Its exit code, negative for a signal; None if it is not known.
        output_tail: End of its output.
        stacks: Stacks that `faulthandler` has dumped.
    """

    seconds: float
    timed_out: bool
    status: int | None
    output_tail: str = ""
    stacks: str = ""


def read_events(text: str) -> list[Event]:
    r"""Return the events of a file; of a line that a kill has cut off, nothing.

    >>> read_events('{"kind": "enough"}\n{"kind": "st')
    [{'kind': 'enough'}]
    """
    events: list[Event] = []
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # Only the last can be cut off.
        if isinstance(event, dict) and "kind" in event:
            events.append(event)
    return events


def observation_of(events: Iterable[Event], run: Run) -> Observation:
    """Return what was seen of a run.

    Args:
        events: Events that the process has written.
        run: Facts that the parent process knows.
    """
    by_kind: dict[str, list[Event]] = {}
    for event in events:
        by_kind.setdefault(event["kind"], []).append(event)
    last = {kind: found[-1] for kind, found in by_kind.items()}
    outcome = _outcome(last, run)
    steps = _steps(by_kind, last.get("training", {}))
    stood = innermost_in_dump(run.stacks, last.get("began", {}).get("thread", 0), is_own)
    return Observation(
        outcome=outcome,
        seconds=run.seconds,
        exit_code=None if outcome in (Outcome.ENOUGH, Outcome.TIMED_OUT) else run.status,
        raised=_raised(last, run, stood) if outcome is Outcome.CRASHED else None,
        where=_where(outcome, last, steps, stood),
        steps=steps,
        still_seconds=_still(by_kind, run),
        traced=tuple(map(_traced, last.get("traced", {}).get("functions", ()))),
        host_reads=tuple(
            HostRead(where=Line(file=file, line=line), num_reads=num, seconds=seconds)
            for file, line, num, seconds in last.get("reads", {}).get("reads", ())
        ),
        output_tail=run.output_tail,
        missed=tuple(event["what"] for event in by_kind.get("missed", ())),
        notes=tuple(event["text"] for event in by_kind.get("note", ())),
    )


def _outcome(last: dict[str, Event], run: Run) -> Outcome:
    if "enough" in last:
        return Outcome.ENOUGH
    if run.timed_out:
        return Outcome.TIMED_OUT
    if "raised" in last or (run.status or 0) < 0:
        return Outcome.CRASHED
    if "exit" in last or run.status:
        return Outcome.EXITED
    return Outcome.FINISHED


def _where(
    outcome: Outcome, last: dict[str, Event], steps: Steps | None, stood: Line | None
) -> Line | None:
    if outcome is Outcome.EXITED:
        return _line(last.get("exit", {}).get("where"))
    if outcome is Outcome.ENOUGH:
        return None if steps is None else steps.where
    return stood if outcome is Outcome.TIMED_OUT else None


def _raised(last: dict[str, Event], run: Run, stood: Line | None) -> Raised:
    event = last.get("raised")
    if event is not None:
        return Raised(
            kind=event["kind_of"],
            message=event["message"],
            where=_line(event["where"]),
            code=event["code"],
        )
    number = -(run.status or 0)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return Raised(kind=name, message=signal.strsignal(number) or name, where=stood)


def _steps(by_kind: dict[str, list[Event]], training: Event) -> Steps | None:
    # A loop in a graph returns late or never; until then its events count.
    recorded = by_kind.get("step") or by_kind.get("loop")
    if not recorded:
        return None
    timed = [event for event in recorded if event["seconds"] is not None]
    return Steps(
        num_steps=sum(event["num"] for event in recorded),
        step_seconds=_median([event["seconds"] / event["num"] for event in timed]),
        input_seconds=_median([event.get("input", 0.0) / event["num"] for event in timed]),
        where=_line(recorded[-1]["where"]),
        batch_size=training.get("batch_size", 0),
        num_replicas=training.get("num_replicas", 1),
    )


def _still(by_kind: dict[str, list[Event]], run: Run) -> float:
    recorded = [*by_kind.get("step", ()), *by_kind.get("loop", ())]
    return max(0.0, run.seconds - max((event["at"] for event in recorded), default=0.0))


def _traced(event: Event) -> Traced:
    return Traced(
        name=event["name"],
        where=_line(event["where"]),
        num_calls=event["calls"],
        num_traces=event["traces"],
        num_made=event["made"],
        arguments=tuple(event["arguments"]),
    )


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def _line(where: Any) -> Line | None:
    return None if where is None else Line(file=where[0], line=where[1])
