"""Reads a program, watches a run of it on request, applies the rules, merges their findings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evener.analysis import Location, Program, read_program
from evener.base.text import ShownAsText
from evener.doctor.configuration import configuration_for
from evener.doctor.edit import Fix
from evener.doctor.finding import Finding, Severity
from evener.doctor.ignored import Ignored
from evener.doctor.queries.authors import author_of
from evener.doctor.queries.tensorflow1 import is_graph_program
from evener.doctor.rule import Author, Case, Family, Rule, Violation
from evener.doctor.rules import all_rules
from evener.doctor.step_memory import StepMemory, step_memory
from evener.doctor.surroundings import Surroundings, surroundings_here
from evener.doctor.watch import Observation, WatchLimits, watch
from evener.run.script import read_module

# Largest number of further lines shown with their text.
_MOST_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(ShownAsText):
    """The findings on a program.

    Args:
        script: Absolute path of the script.
        findings: Findings in the order of what the author of the program would ask: why it does
            not run, why a device is idle or memory runs out, why numbers are wrong, why it is slow;
            then the worst first, by file and line. Hints are last. Empty for a fine program.
        num_gpus: Number of GPUs that is assumed.
        is_assumed: Whether that number is the default, as none is given and there is no GPU.
        num_ignored: Number of findings that comments in the program suppress.
        observation: Observation of the run; None if the program was only read.
        fixes: Edits that are certain, by file and line; `fix_program` makes them.
        num_violations: Number of violations by code, before those of one cause become a finding.
        not_estimated: Reason for which the memory of a step is not known, if it was asked for.
    """

    script: str
    findings: tuple[Finding, ...]
    num_gpus: int = 0
    is_assumed: bool = False
    num_ignored: int = 0
    observation: Observation | None = None
    not_estimated: str = ""
    fixes: tuple[Fix, ...] = ()
    num_violations: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_fine(self) -> bool:
        """Whether no finding is worse than a hint."""
        return all(finding.severity is Severity.HINT for finding in self.findings)

    def __str__(self) -> str:
        """Return all findings in their order, and their number."""
        counts = Counter(finding.severity.value for finding in self.findings)
        numbers = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items()]
        last = f"{', '.join(numbers) or 'nothing found'} in {self.script}"
        return "\n\n".join([*map(str, self.findings), last])

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as ``--json`` prints it: text, numbers and lists by field name."""
        ran = None
        if self.observation is not None:
            ran = {
                "outcome": self.observation.outcome.value,
                "seconds": round(self.observation.seconds, 3),
            }
        return {
            "script": self.script,
            "fine": self.is_fine,
            "num_gpus": self.num_gpus,
            "num_gpus_assumed": self.is_assumed,
            "findings": [finding.to_dict() for finding in self.findings],
            "num_ignored": self.num_ignored,
            "run": ran,
            "memory_not_estimated": self.not_estimated,
        }


def diagnose(
    path: str | os.PathLike[str],
    *,
    as_module: bool = False,
    run: bool = False,
    args: Sequence[str] = (),
    devices: str | None = None,
    time_limit_seconds: float = 120.0,
    num_steps: int = 20,
    gpu_names: bool = False,
    num_gpus: int | None = None,
    gpu_memory_bytes: int | None = None,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
) -> Diagnosis:
    r"""Find the mistakes of a training program; with ``run``, watch a run of it too.

    Without ``run`` it is not executed. A script that does not exist or is not Python is not run.

    Args:
        path: Path of a Python script. Modules of the same project that it imports are read too.
            A file that does not exist or is not Python is a finding.
        as_module: Whether `path` is the name of a module, as for ``python -m``.
        run: Whether to run it for a few steps, in a subprocess.
        args: Arguments of the script.
        devices: Device spec to configure before it runs, such as ``"cpu:2"`` for two
            stand-ins; None for the environment's, else the script's own.
        time_limit_seconds: Time limit of the run, above 0.
        num_steps: Number of steps to watch, without those that trace; from 1.
        gpu_names: Whether to present CPU devices to it as GPUs on a machine without GPUs.
        num_gpus: Number of GPUs to assume, from 0. None for the table
            ``[tool.evener.doctor]`` of the nearest ``pyproject.toml`` above the script, else the
            GPUs that are there, else 2.
        gpu_memory_bytes: Memory of each GPU that is assumed, above 0; with ``run``, the memory of a
            step is compared with it. None for that of the GPUs that are there.
        select: Codes to report, or prefixes of codes such as ``"DOC-4"``; None for
            the table, else all.
        ignore: Codes not to report; None for the table, else none.

    Returns:
        The diagnosis; its findings are ``()`` for a program that is fine.

    Raises:
        DeviceError: DEV-001 to DEV-007 if it is to run and the spec cannot be read.
        RunError: RUN-011 to RUN-013 if a code, the table or the number of GPUs is wrong; RUN-003
            or RUN-021 if a module cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> script = pathlib.Path(tempfile.mkdtemp(), "train.py")
        >>> _ = script.write_text("import tensorflow as tf\nwith tf.device('gpu:0'")
        >>> [finding.code for finding in diagnose(script, run=True).findings]
        ['DOC-001']
    """
    script = Path(read_module(os.fspath(path)).path if as_module else path)
    chosen = configuration_for(script, select=select, ignore=ignore, num_gpus=num_gpus)
    program = read_program(script)
    observation = None
    if run and not any(unread.importer is None for unread in program.unread):
        observation = watch(
            path if as_module else script,
            args,
            as_module=as_module,
            devices=devices,
            gpu_names=gpu_names,
            limits=WatchLimits(time_limit_seconds=time_limit_seconds, num_steps=num_steps),
        )
    rules = [rule for rule in all_rules() if chosen.reports(rule.code)]
    surroundings = surroundings_here().judged_for(chosen.num_gpus, gpu_memory_bytes)
    memory: StepMemory | str | None = None
    if observation is not None and _asks_for_memory(surroundings, observation):
        memory = step_memory(
            os.fspath(path if as_module else script),
            args,
            as_module=as_module,
            time_limit_seconds=time_limit_seconds,
        )
    return _examined(program, surroundings, observation, rules, memory)


def _asks_for_memory(surroundings: Surroundings, observation: Observation) -> bool:
    """Return whether the memory of GPUs is known, and the program came to a step or ran out."""
    raised = observation.raised
    has_run_out = raised is not None and "ResourceExhausted" in raised.kind
    return any(gpu.memory_total_bytes for gpu in surroundings.gpus) and (
        has_run_out or observation.steps is not None
    )


def examine(
    script: Path,
    surroundings: Surroundings,
    observation: Observation | None = None,
    *,
    rules: Iterable[Rule] | None = None,
    contents: Mapping[str, bytes] | None = None,
) -> Diagnosis:
    """Apply rules to a program, its surroundings and the observation of a run.

    Args:
        script: The path of a Python file.
        surroundings: The machine, the environment, the packages.
        observation: Observation of a run.
        rules: The rules; None for all.
        contents: Contents to read instead of those of files, by absolute path.
    """
    return _examined(read_program(script, contents), surroundings, observation, rules)


def _examined(
    program: Program,
    surroundings: Surroundings,
    observation: Observation | None,
    rules: Iterable[Rule] | None,
    memory: StepMemory | str | None = None,
) -> Diagnosis:
    case = Case(
        program=program,
        surroundings=surroundings,
        observation=observation,
        memory=memory if isinstance(memory, StepMemory) else None,
    )
    chosen = tuple(all_rules() if rules is None else rules)
    if is_graph_program(case):
        # The other rules do not hold for TensorFlow 1.
        chosen = tuple(rule for rule in chosen if rule.family is Family.PROGRAM)
    ignored = Ignored(program)
    reported = [(rule, violation) for rule in chosen for violation in rule.check(case)]
    kept = [(r, v) for r, v in reported if not ignored.has(v.location, r.code)]
    return Diagnosis(
        script=program.script,
        findings=_merged(kept, author_of(program)),
        num_gpus=len(surroundings.gpus),
        is_assumed=surroundings.is_assumed,
        num_ignored=len(reported) - len(kept),
        observation=case.observation,
        not_estimated=memory if isinstance(memory, str) else "",
        fixes=_fixes(kept),
        num_violations=Counter(rule.code for rule, _ in kept),
    )


def _fixes(reported: Iterable[tuple[Rule, Violation]]) -> tuple[Fix, ...]:
    """Return the edits that rules offer, in the order of files and lines."""
    found = (
        Fix(code=rule.code, location=violation.location, edits=violation.edits)
        for rule, violation in reported
        if violation.edits
    )
    # One violation may be reported from several places.
    return tuple(
        sorted(dict.fromkeys(found), key=lambda fix: (fix.location.path, fix.location.line))
    )


_Group = tuple[Violation, tuple[str, ...]]


def _merged(reported: Iterable[tuple[Rule, Violation]], author: Author) -> tuple[Finding, ...]:
    """Return one finding for each cause, and for each line of a rule."""
    by_cause: dict[tuple[object, ...], list[Violation]] = {}
    for rule, violation in sorted(reported, key=lambda pair: _order(*pair, author)):
        severity = violation.severity or rule.severity
        cause = (rule.code, severity, violation.cause or (violation.why, violation.fix))
        by_cause.setdefault(cause, []).append(violation)
    by_line: dict[tuple[str, str, int], list[_Group]] = {}
    severities: dict[tuple[str, str, int], Severity] = {}
    for (code, severity, *_), (first, *others) in by_cause.items():
        assert isinstance(code, str) and isinstance(severity, Severity)
        line = (code, first.location.path, first.location.line)
        by_line.setdefault(line, []).append((first, _also(first.location, others)))
        severities.setdefault(line, severity)
    return tuple(_finding(line, severities[line], groups) for line, groups in by_line.items())


def _order(
    rule: Rule, violation: Violation, author: Author
) -> tuple[bool, int, int, str, int, str]:
    """Return the position of a violation: hints last, then what its author would ask first."""
    severity = violation.severity or rule.severity
    return (
        severity is Severity.HINT,
        rule.question(author),
        severity.rank,
        violation.location.path,
        violation.location.line,
        rule.code,
    )


def _also(first: Location, others: list[Violation]) -> tuple[str, ...]:
    """Return the further lines of a finding, as its evidence."""
    locations = list(dict.fromkeys(other.location for other in others if other.location != first))
    lines = [
        f"also {_shown(location, first)}" + (f": {location.text}" if location.text else "")
        for location in locations[:_MOST_LINES]
    ]
    num_more = len(locations) - len(lines)
    return (*lines, *([f"and {num_more} more"] if num_more else []))


def _shown(location: Location, first: Location) -> str:
    is_same_file = location.path == first.path
    return f"line {location.line}" if is_same_file else f"{location.path}:{location.line}"


def _finding(line: tuple[str, str, int], severity: Severity, groups: list[_Group]) -> Finding:
    first = groups[0][0]
    evidence = [
        text
        for violation, _ in groups
        for text in violation.evidence or (violation.location.text,)
        if text
    ]
    evidence += [text for _, also in groups for text in also]
    return Finding(
        code=line[0],
        severity=severity,
        file=first.location.path,
        line=first.location.line,
        what=" ".join(dict.fromkeys(violation.what for violation, _ in groups)),
        why=" ".join(dict.fromkeys(violation.why for violation, _ in groups)),
        fix="\n".join(dict.fromkeys(violation.fix for violation, _ in groups)),
        evidence=tuple(dict.fromkeys(evidence)),
    )
