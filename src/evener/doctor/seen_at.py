"""Where findings of a run stand: lines that were seen, with their text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evener.doctor.program import Place

if TYPE_CHECKING:
    from evener.doctor.rule import Case
    from evener.doctor.watch import Line


def place_of(case: Case, line: Line | None) -> Place:
    """Return the place of a line that was seen; the script as a whole, if there is none.

    Args:
        case: Knows the text of the program's files.
        line: What was seen.
    """
    if line is None:
        return Place(path=case.program.script, line=0)
    for module in case.program.modules:
        if module.path == line.file:
            in_file = 0 < line.line <= len(module.lines)
            text = module.lines[line.line - 1].strip() if in_file else ""
            return Place(path=line.file, line=line.line, text=text)
    return Place(path=line.file, line=line.line)
