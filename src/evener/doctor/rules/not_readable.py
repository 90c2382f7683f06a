"""DOC-002: the script cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evener.analysis import Location
from evener.doctor.rule import Case, Violation


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    for unread in case.program.unread:
        if unread.importer is None and not unread.is_text:
            yield Violation(
                Location(path=unread.path, line=0),
                f"the script cannot be read: {unread.reason}.",
                why=f"There is nothing to look at; the current folder is {Path.cwd()}.",
                fix="give the path of a Python file that is there.",
                evidence=(unread.reason,),
            )
