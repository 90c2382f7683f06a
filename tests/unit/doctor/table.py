"""Tables of short programs: which lines a rule finds in them, and in which it finds nothing."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

from evener.analysis import read_program
from evener.doctor import Case, Family, Severity, all_rules
from evener.doctor.watch import Observation
from unit.doctor.programs import marks_in, surroundings_of

OWN = (Family.NUMBERS, Family.SPEED, Family.CHECKPOINTS)
IMPORTS = "import keras\nimport numpy as np\nimport tensorflow as tf\n"


def write(program: str, folder: Path) -> Path:
    """Write a program, with the usual imports before it unless it has its own."""
    text = textwrap.dedent(program).strip() + "\n"
    path = folder / "train.py"
    path.write_text(text if "import tensorflow" in text else IMPORTS + text, encoding="utf-8")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A violation, with the rule's code."""

    code: str
    line: int
    severity: Severity
    what: str
    evidence: tuple[str, ...]


def violations(
    path: Path, *, num_gpus: int = 2, observation: Observation | None = None
) -> list[Found]:
    """Return what the rules on numbers, speed and checkpoints report, line by line."""
    surroundings = surroundings_of(path.read_text(encoding="utf-8"), num_gpus=num_gpus)
    case = Case(program=read_program(path), surroundings=surroundings, observation=observation)
    return [
        Found(
            code=rule.code,
            line=violation.location.line,
            severity=violation.severity or rule.severity,
            what=violation.what,
            evidence=violation.evidence,
        )
        for rule in all_rules()
        if rule.family in OWN
        for violation in rule.check(case)
    ]


def check_finds(code: str, program: str, folder: Path) -> None:
    """Check that the rule finds the lines that the program marks, and no others."""
    path = write(program, folder)
    marked = {mark.line for mark in marks_in(path) if mark.code == code}
    found = {violation.line for violation in violations(path) if violation.code == code}
    assert marked, "no line is marked"
    assert found == marked


def check_quiet(code: str, program: str, folder: Path) -> None:
    """Check that the rule finds nothing, and that none finds anything above a hint."""
    found = violations(write(program, folder))
    assert code not in {violation.code for violation in found}
    assert [str(violation) for violation in found if violation.severity is not Severity.HINT] == []
