"""A finding: one mistake, with its line, evidence and fix."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evener.errors import house_form


class Severity(enum.Enum):
    """Severity of a finding, the worst first."""

    ERROR = "error"  # fails, or trains something other than intended
    WARNING = "warning"  # wastes devices, time or memory, or will fail elsewhere
    HINT = "hint"  # could be better

    @property
    def rank(self) -> int:
        """Position in the order of severities: 0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Mistake that the doctor has found in a program.

    Args:
        code: Code of the rule; ``evener doctor --explain CODE`` prints its page.
        severity: Severity of the mistake.
        file: Absolute path of the file, or another name, such as that of an environment variable.
        line: Line number, from 1; 0 if it concerns no line.
        what: Sentence that says what is wrong.
        why: Effect on the training.
        fix: Code to write instead.
        evidence: Facts that show it: lines of the program, settings, measured numbers.
    """

    code: str
    severity: Severity
    file: str
    line: int
    what: str
    why: str
    fix: str
    evidence: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        """``file:line``, the file relative to the current folder; the file alone for line 0."""
        return shown_location(self.file, self.line)

    def __str__(self) -> str:
        return house_form(self.code, f"{self.location}: {self.what}", self.why, self.fix)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as ``--json`` prints it: text, numbers and lists by field name."""
        return {**dataclasses.asdict(self), "severity": self.severity.value}


def shown_location(file: str, line: int) -> str:
    """Return ``file:line``, the file relative to the current folder; the file alone for line 0."""
    below, here = Path(file), Path.cwd()
    short = str(below.relative_to(here)) if below.is_relative_to(here) else file
    return f"{short}:{line}" if line else short
