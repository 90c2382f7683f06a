"""A finding: one mistake, with its line, evidence and fix."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evener.errors import house_form


class Severity(enum.Enum):
    """How much a finding matters, the worst first."""

    ERROR = "error"  # fails, or trains something else than was meant
    WARNING = "warning"  # wastes devices, time or memory, or will fail elsewhere
    HINT = "hint"  # could be better

    @property
    def rank(self) -> int:
        """Return 0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the doctor has found.

    Args:
        code: The rule's code; ``evener doctor --explain CODE`` prints its page.
        severity: How much it matters.
        file: The absolute path of the program's file, or what stands for it.
        line: Its line, from 1; 0 if it is about no line.
        what: One sentence: what is wrong.
        why: What it does to the training.
        fix: What to write instead.
        evidence: What it was seen by: lines of the program, settings, measured numbers.
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
    def place(self) -> str:
        """Return ``file:line``, the file relative to the current folder."""
        below, here = Path(self.file), Path.cwd()
        short = str(below.relative_to(here)) if below.is_relative_to(here) else self.file
        return f"{short}:{self.line}" if self.line else short

    def __str__(self) -> str:
        return house_form(self.code, f"{self.place}: {self.what}", self.why, self.fix)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints of it."""
        return {**dataclasses.asdict(self), "severity": self.severity.value}
