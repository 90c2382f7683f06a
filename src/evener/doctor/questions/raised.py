"""What ended a watched run, where a rule knows the mistake by it."""

from __future__ import annotations

from evener.doctor.program import Place
from evener.doctor.questions.texts import place_at
from evener.doctor.rule import Case


def raised_place(case: Case, *signs: str, codes: tuple[str, ...] = ()) -> Place | None:
    """Return the program's line that raised, if the error is one that a rule knows.

    Args:
        case: The case.
        signs: Texts; the error's message has one of them.
        codes: Codes of evener's errors.
    """
    raised = None if case.seen is None else case.seen.raised
    if raised is None or raised.where is None:
        return None
    if raised.code in codes or any(sign in raised.message for sign in signs):
        return place_at(case.program, raised.where.file, raised.where.line)
    return None


def warned_places(case: Case, *codes: str) -> list[Place]:
    """Return the program's lines at which evener gave a warning with one of some codes."""
    warned = () if case.seen is None else case.seen.warned
    return [
        place_at(case.program, one.where.file, one.where.line)
        for one in warned
        if one.where is not None and one.code in codes
    ]
