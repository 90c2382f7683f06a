"""DOC-003: a module of the project cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

from evener.analysis import Location
from evener.doctor.rule import Case, Violation


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    for unread in case.program.unread:
        if unread.importer is None:
            continue
        file, line = unread.importer
        yield Violation(
            Location(path=unread.path, line=unread.line),
            f"this module cannot be read: {unread.reason}.",
            why=f"The import at {file}:{line} fails, and with it the program. What the module "
            "defines was not looked at.",
            fix="correct this file.",
            evidence=(unread.reason,),
        )
