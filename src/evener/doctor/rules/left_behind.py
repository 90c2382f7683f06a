"""DOC-013: the program left processes behind."""

from __future__ import annotations

from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.rule import Case, Family, Rule
from evener.doctor.seen_at import place_of


def _look(case: Case) -> Iterator[Finding]:
    seen = case.seen
    if seen is None or not seen.num_left_behind:
        return
    one = seen.num_left_behind == 1
    yield RULE.finding(
        place_of(case, None),
        f"{seen.num_left_behind} process{'' if one else 'es'} outlived the program.",
        why="What goes on after the program's end keeps memory, GPUs and ports, and the next run "
        "finds them taken. The doctor has ended "
        f"{'it' if one else 'them'}.",
        fix="join or terminate what the program starts (multiprocessing, subprocess, os.fork) "
        "before its end, also when it fails.",
        evidence=(f"{seen.num_left_behind} left, the program's outcome: {seen.outcome.value}",),
    )


RULE = Rule(
    code="DOC-013",
    family=Family.PROGRAM,
    title="the program left processes behind",
    severity=Severity.WARNING,
    look=_look,
)
