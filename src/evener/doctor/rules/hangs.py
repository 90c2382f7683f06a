"""DOC-010: the program hangs."""

from __future__ import annotations

from collections.abc import Iterator

from evener.base.text import format_seconds
from evener.doctor.queries.source_text import observed_location
from evener.doctor.rule import Case, Violation
from evener.doctor.watch import Outcome

# Between two steps there may be validation, a checkpoint, a new trace.
_STILL_SECONDS = 20.0
_STILL_STEPS = 50.0


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    seen = case.observation
    if seen is None or seen.outcome is not Outcome.TIMED_OUT:
        return
    steps = seen.steps
    if steps is None:
        what = f"no training step was over within {format_seconds(seen.seconds)}."
    elif seen.still_seconds > max(_STILL_SECONDS, _STILL_STEPS * steps.step_seconds):
        what = (
            f"after {steps.num_steps} steps nothing was trained for "
            f"{format_seconds(seen.still_seconds)}."
        )
    else:
        return
    location = observed_location(case.program, seen.where)
    stood = (
        f"It stood at {location.path}:{location.line}"
        if seen.where
        else "Where it stood is not known"
    )
    yield Violation(
        location,
        what,
        why=f"{stood} when it was ended: it waits for something that does not come, or what it "
        "does before it trains takes longer than it was given.",
        fix="look at what this line waits for (input, another worker, a lock, a download); if it "
        "is only slow, give it more time.",
        evidence=(location.text, f"ran {format_seconds(seen.seconds)}"),
    )
