"""DOC-014: the program prints a great deal."""

from __future__ import annotations

from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.rule import Case, Family, Rule
from evener.doctor.seen_at import place_of
from evener.units import format_bytes

_MANY_BYTES = 500_000


def _look(case: Case) -> Iterator[Finding]:
    seen = case.seen
    if seen is None or seen.num_output_bytes < _MANY_BYTES:
        return
    when = "before any step" if seen.steps is None else f"in {seen.steps.num_steps} steps"
    yield RULE.finding(
        place_of(case, None),
        f"the program printed {format_bytes(seen.num_output_bytes)} {when}.",
        why="Printing costs time in every step, and logs of long runs fill disks. What matters "
        "is lost in it.",
        fix="print every so many steps, print numbers instead of tensors, and use verbose=2 in "
        "fit where the output is no terminal.",
        evidence=(f"last of it: {seen.output_tail.strip()[-200:]}",),
    )


RULE = Rule(
    code="DOC-014",
    family=Family.PROGRAM,
    title="the program prints a great deal",
    severity=Severity.WARNING,
    look=_look,
)
