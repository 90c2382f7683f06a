"""DOC-001: the script is no Python."""

from __future__ import annotations

from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Place
from evener.doctor.rule import Case, Family, Rule


def _look(case: Case) -> Iterator[Finding]:
    for unread in case.program.unread:
        if unread.importer is None and unread.is_text:
            yield RULE.finding(
                Place(path=unread.path, line=unread.line),
                f"this is not Python: {unread.reason}.",
                why="Python would refuse it in the same way, so nothing else was looked at.",
                fix="correct this line, or give the file of a Python script.",
                evidence=(unread.reason,),
            )


RULE = Rule(
    code="DOC-001",
    family=Family.PROGRAM,
    title="the script is not Python",
    severity=Severity.ERROR,
    look=_look,
)
