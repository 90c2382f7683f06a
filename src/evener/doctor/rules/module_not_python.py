"""DOC-003: a module of the project cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Place
from evener.doctor.rule import Case, Family, Rule


def _look(case: Case) -> Iterator[Finding]:
    for unread in case.program.unread:
        if unread.importer is None:
            continue
        file, line = unread.importer
        yield RULE.finding(
            Place(path=unread.path, line=unread.line),
            f"this module cannot be read: {unread.reason}.",
            why=f"The import at {file}:{line} fails, and with it the program. What the module "
            "defines was not looked at.",
            fix="correct this file.",
            evidence=(unread.reason,),
        )


RULE = Rule(
    code="DOC-003",
    family=Family.PROGRAM,
    title="a module of the project cannot be read",
    severity=Severity.ERROR,
    look=_look,
)
