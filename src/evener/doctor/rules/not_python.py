"""DOC-001: the script is no Python."""

from __future__ import annotations

from collections.abc import Iterator

from evener.analysis import Location
from evener.doctor.rule import Case, Violation


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    for unread in case.program.unread:
        if unread.importer is None and unread.is_text:
            yield Violation(
                Location(path=unread.path, line=unread.line),
                f"this is not Python: {unread.reason}.",
                why="Python would refuse it in the same way, so nothing else was looked at.",
                fix="correct this line, or give the file of a Python script.",
                evidence=(unread.reason,),
            )
