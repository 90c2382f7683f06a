"""DOC-012: the program ended before it trained."""

from __future__ import annotations

from collections.abc import Iterator

from evener.doctor.finding import Severity
from evener.doctor.queries.source_text import observed_location
from evener.doctor.rule import Case, Violation
from evener.doctor.watch import Observation, Outcome

# argparse and click leave with it when arguments are wrong or missing.
_WRONG_USAGE = 2


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    seen = case.observation
    if seen is None or seen.outcome not in (Outcome.EXITED, Outcome.FINISHED):
        return
    if seen.steps is not None and not seen.exit_code:
        return
    location = observed_location(case.program, seen.where)
    yield Violation(
        location,
        _what(seen),
        why="There was no step, or it did not go on, so nothing is known of how it trains."
        if seen.steps is None
        else "Its exit code reports an error.",
        fix=_fix(seen),
        evidence=tuple(filter(None, (location.text, f"exit code {seen.exit_code}", _said(seen)))),
        severity=Severity.ERROR if seen.exit_code else Severity.WARNING,
    )


def _what(seen: Observation) -> str:
    when = "before it trained" if seen.steps is None else f"after {seen.steps.num_steps} steps"
    if seen.outcome is Outcome.EXITED:
        return f"the program left with exit code {seen.exit_code} {when}."
    return f"the program came to its end {when}."


def _fix(seen: Observation) -> str:
    if seen.exit_code == _WRONG_USAGE:
        return "give the arguments that the program needs, after the script's name."
    if seen.exit_code:
        return "look at what it printed last, and at the line that it left from."
    return (
        "give the script that trains, with the arguments that make it train; code under "
        "`if __name__ == '__main__':` runs."
    )


def _said(seen: Observation) -> str:
    lines = seen.output_tail.strip().splitlines()
    return f"it printed last: {lines[-1][:200]}" if lines else ""
