"""Reading a program, watching it if asked to, and letting every rule look at both."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evener.doctor.configuration import configuration_for
from evener.doctor.finding import Finding, Severity
from evener.doctor.ignored import without_ignored
from evener.doctor.program import Program, read_program
from evener.doctor.questions.graph_programs import is_graph_program
from evener.doctor.rule import Case, Family, Rule, all_rules
from evener.doctor.surroundings import Surroundings, surroundings_here
from evener.doctor.watch import Seen, watch

# This rule has one finding for each name, and counts the lines itself.
_COUNTED_BY_RULE = ("DOC-004",)
# So many other lines are shown with their text.
_MOST_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the doctor says of a program.

    Args:
        script: The script's absolute path.
        findings: The worst first, then by file and line.
        num_gpus: For how many GPUs the program is judged.
        is_assumed: Whether that number is assumed: nobody has said it, and there is no GPU.
        num_ignored: How many findings comments in the program take back.
        seen: What the run has shown; None if the program was only read.
    """

    script: str
    findings: tuple[Finding, ...]
    num_gpus: int = 0
    is_assumed: bool = False
    num_ignored: int = 0
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
            "num_gpus": self.num_gpus,
            "num_gpus_assumed": self.is_assumed,
            "findings": [finding.to_dict() for finding in self.findings],
            "num_ignored": self.num_ignored,
            "run": ran,
        }


def diagnose(
    path: str | os.PathLike[str],
    *,
    run: bool = False,
    args: Sequence[str] = (),
    devices: str | None = None,
    time_limit_seconds: float = 120.0,
    num_steps: int = 20,
    gpu_names: bool = False,
    num_gpus: int | None = None,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
) -> Diagnosis:
    r"""Read a training program and say what is wrong with it; with ``run``, watch it too.

    Without ``run`` nothing of it is executed. A script that is not there, or is no Python, is
    not run.

    Args:
        path: The file of a Python script. Modules of the same project that it imports are read
            too. That the file is not there, or is no Python, is a finding.
        run: Whether to run it for a few steps, in a process of its own.
        args: What follows the script on its command line.
        devices: A device spec that is laid out before it runs, such as ``"cpu:2"`` for two
            stand-ins; None for what the environment says, else the script's own.
        time_limit_seconds: How long it may run, above 0.
        num_steps: How many steps, those with tracing left out, are enough; from 1.
        gpu_names: Whether CPU devices answer as GPUs to it, where there is no GPU.
        num_gpus: Judge it as if the machine had so many GPUs, from 0. None for the table
            ``[tool.evener.doctor]`` of the nearest ``pyproject.toml`` above the script, else the
            GPUs that are there, else 2.
        select: Report only these codes, or beginnings of codes such as ``"DOC-4"``; None for
            the table, else all.
        ignore: Do not report these; None for the table, else none.

    Returns:
        The findings, the worst first; ``findings == ()`` for a program that is fine.

    Raises:
        DeviceError: DEV-001 to DEV-007 if it is to run and the spec cannot be read.
        RunError: RUN-011 to RUN-013 if a code, the table or the number of GPUs is wrong.

    Example:
        >>> import pathlib, tempfile
        >>> script = pathlib.Path(tempfile.mkdtemp(), "train.py")
        >>> _ = script.write_text("import tensorflow as tf\nwith tf.device('gpu:0'")
        >>> [finding.code for finding in diagnose(script, run=True).findings]
        ['DOC-001']
    """
    script = Path(path)
    chosen = configuration_for(script, select=select, ignore=ignore, num_gpus=num_gpus)
    program = read_program(script)
    seen = None
    if run and not any(unread.importer is None for unread in program.unread):
        seen = watch(
            script,
            args,
            devices=devices,
            time_limit_seconds=time_limit_seconds,
            num_steps=num_steps,
            gpu_names=gpu_names,
        )
    rules = [rule for rule in all_rules() if chosen.reports(rule.code)]
    return _examined(program, surroundings_here().judged_for(chosen.num_gpus), seen, rules)


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
    return _examined(read_program(script), surroundings, seen, rules)


def _examined(
    program: Program, surroundings: Surroundings, seen: Seen | None, rules: Iterable[Rule] | None
) -> Diagnosis:
    case = Case(program=program, surroundings=surroundings, seen=seen)
    chosen = tuple(all_rules() if rules is None else rules)
    if is_graph_program(case):
        # Its lines mean other things in TensorFlow 1 than the other rules know.
        chosen = tuple(rule for rule in chosen if rule.family is Family.PROGRAM)
    found = [finding for rule in chosen for finding in rule.look(case)]
    findings, num_ignored = without_ignored(program, _joined(found))
    findings = _by_cause(findings)
    return Diagnosis(
        script=program.script,
        findings=findings,
        num_gpus=len(surroundings.gpus),
        is_assumed=surroundings.is_assumed,
        num_ignored=num_ignored,
        seen=seen,
    )


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


def _by_cause(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Make one finding of those that ask for the same change at several lines."""
    by_cause: dict[tuple[object, ...], list[Finding]] = {}
    for one in findings:
        is_counted = one.code in _COUNTED_BY_RULE
        cause = one.what if is_counted else (one.severity, one.why, one.fix)
        by_cause.setdefault((one.code, cause), []).append(one)
    return tuple(_with_lines(same) for same in by_cause.values())


def _with_lines(same: list[Finding]) -> Finding:
    first, *others = same
    lines = [
        f"also {one.place if one.file != first.file else f'line {one.line}'}: {one.evidence[0]}"
        if one.evidence
        else f"also {one.place}"
        for one in others[:_MOST_LINES]
    ]
    if len(others) > _MOST_LINES:
        lines.append(f"and {len(others) - _MOST_LINES} more")
    return replace(first, evidence=(*first.evidence, *lines)) if lines else first
