"""Where one step's operations are, and what moves: the audit of the step that was seen last."""

from __future__ import annotations

from collections import Counter
from typing import Any

from evener.doctor.watch.inside.entries import Entries
from evener.doctor.watch.inside.events import Events
from evener.doctor.watch.inside.waiting import SCOPE
from evener.placement.auditing import audit_of
from evener.placement.dry_run import stop_at
from evener.placement.parts import Line
from evener.placement.record import Audit
from evener.placement.training import trains

_MOST_TOLD = 200


class Placing:
    """Audits the step when enough steps were seen, right before the program is ended.

    The last call is made once more and stopped before it runs anything.

    Args:
        events: Where it is told.
        entries: Knows the last call that took a step.
    """

    def __init__(self, events: Events, entries: Entries) -> None:
        self._events = events
        self._entries = entries

    def tell(self) -> None:
        """Tell what the audit says; if there can be none, why."""
        call = self._entries.last_call
        stopped = None if call is None else stop_at(call, trains)
        if stopped is None:
            why = "no call that Python makes of a traced function takes one step"
            self._events.tell_once("missed", what=f"where operations are placed: {why}")
            return
        # The batch that is drawn for the sizes is nobody's any more.
        self._events.tell("placed", **told_of(audit_of(stopped, step="step", draw=True)))


def told_of(audit: Audit) -> dict[str, Any]:
    """Return the values of an audit that the doctor looks at, without its own operations."""
    counted = Counter[str]()
    gradients = Counter[str]()
    for one in audit.operations:
        if SCOPE not in one.name:
            counted[one.used] += 1
            gradients[one.used] += one.kind == "gradient"
    copied = Counter[tuple[str, str, Line | None]]()
    for one in audit.copies:
        if SCOPE not in one.tensor:
            copied[one.source, one.target, one.line] += one.num_bytes or 0
    return {
        "work": [[device, counted[device], gradients[device]] for device in sorted(counted)],
        "misplaced": [
            {
                "name": one.operation,
                "type": one.type,
                "asked": one.asked,
                "used": one.used,
                "reason": one.why,
                "where": _as_json(one.line),
            }
            for one in audit.findings[:_MOST_TOLD]
        ],
        "copied": [
            [source, target, num_bytes, _as_json(line)]
            for (source, target, line), num_bytes in copied.most_common(_MOST_TOLD)
        ],
    }


def _as_json(line: Line | None) -> list[Any] | None:
    return None if line is None else [line.path, line.number]
