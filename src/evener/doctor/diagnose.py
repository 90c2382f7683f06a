"""Reading a program, watching it if asked to, and letting every rule look at both."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import read_program
from evener.doctor.rule import Case, Rule, all_rules
from evener.doctor.surroundings import Surroundings, surroundings_here
from evener.doctor.watch import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the doctor says of a program.

    Args:
        script: The script's absolute path.
        findings: The worst first, then by file and line.
        seen: What the run has shown; None if the program was only read.
    """

    script: str
    findings: tuple[Finding, ...]
    seen: Seen | None = None

    @property
    def is_fine(self) -> bool:
        """Return whether there is nothing above a hint."""
        return all(finding.severity is Severity.HINT for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        ran = None
        if self.seen is not None:
            ran = {"outcome": self.seen.outcome.value, "seconds": round(self.seen.seconds, 3)}
        return {
            "script": self.script,
            "fine": self.is_fine,
            "findings": [finding.to_dict() for finding in self.findings],
            "run": ran,
        }


def diagnose(path: str | os.PathLike[str]) -> Diagnosis:
    r"""Read a training program and say what is wrong with it. Nothing of it is executed.

    Args:
        path: The file of a Python script. Modules of the same project that it imports are read
            too. That the file is not there, or is no Python, is a finding.

    Returns:
        The findings, the worst first; ``findings == ()`` for a program that is fine.

    Example:
        >>> import pathlib, tempfile
        >>> script = pathlib.Path(tempfile.mkdtemp(), "train.py")
        >>> _ = script.write_text("import tensorflow as tf\nwith tf.device('gpu:0'")
        >>> [finding.code for finding in diagnose(script).findings]
        ['DOC-001']
    """
    return examine(Path(path), surroundings_here())


def examine(
    script: Path,
    surroundings: Surroundings,
    seen: Seen | None = None,
    *,
    rules: Iterable[Rule] | None = None,
) -> Diagnosis:
    """Let rules look at a program, at what is around it, and at what a run has shown.

    Args:
        script: The path of a Python file.
        surroundings: The machine, the environment, the packages.
        seen: What a run has shown.
        rules: Which rules look; None for all.
    """
    program = read_program(script)
    case = Case(program=program, surroundings=surroundings, seen=seen)
    found = [
        finding for rule in (all_rules() if rules is None else rules) for finding in rule.look(case)
    ]
    return Diagnosis(script=program.script, findings=_joined(found), seen=seen)


def _joined(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort, and make one of those that say the same of the same line."""
    by_line: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.file, finding.line)
        first = by_line.get(key)
        if first is None:
            by_line[key] = finding
            continue
        worse, other = sorted((first, finding), key=lambda one: one.severity.rank)
        more = tuple(line for line in other.evidence if line not in worse.evidence)
        by_line[key] = Finding(
            code=worse.code,
            severity=worse.severity,
            file=worse.file,
            line=worse.line,
            what=worse.what,
            why=worse.why,
            fix=worse.fix,
            evidence=(*worse.evidence, *more),
        )
    return tuple(
        sorted(by_line.values(), key=lambda one: (one.severity.rank, one.file, one.line, one.code))
    )
