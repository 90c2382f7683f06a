"""DOC-002: the script cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Place
from evener.doctor.rule import Case, Family, Rule


def _look(case: Case) -> Iterator[Finding]:
    for unread in case.program.unread:
        if unread.importer is None and not unread.is_text:
            yield RULE.finding(
                Place(path=unread.path, line=0),
                f"the script cannot be read: {unread.reason}.",
                why=f"There is nothing to look at; the current folder is {Path.cwd()}.",
                fix="give the path of a Python file that is there.",
                evidence=(unread.reason,),
            )


RULE = Rule(
    code="DOC-002",
    family=Family.PROGRAM,
    title="the script cannot be read",
    severity=Severity.ERROR,
    look=_look,
    also=("RUN-001", "RUN-002"),
)
