"""The road of the doctor: read, run, judge the facts, order and merge the findings."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evener.base.notebook import ShownAsText
from evener.devices.spec import spec_from
from evener.doctor.configuration import Configuration, configuration_for, is_ignored
from evener.doctor.endings import successor_in
from evener.doctor.facts import Facts
from evener.doctor.finding import NO_RUN, Case, Family, Finding, Reading, Rule, Severity, Violation
from evener.doctor.rules import all_rules
from evener.doctor.sources import read_sources
from evener.doctor.surroundings import Surroundings, surroundings_here
from evener.doctor.walk import Walk
from evener.run.script import read_module

# Largest number of further lines shown with their text.
_MOST_LINES = 5
_CRASHED, _REMOVED = "DOC-011", "DOC-004"
# What nothing else is certain beside: the program was not read, or did not get to training.
_FIRST = ("DOC-001", "DOC-002")
# What another mistake may end in: gradients, losses and weights that run away.
_SYMPTOMS = ("DOC-333", "DOC-334", "DOC-335")
# Mistakes of programs with several replicas: under evener there is one, on all devices.
_OF_SEVERAL_REPLICAS = ("DOC-214", "DOC-216", "RUN-010", "ENG-003")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(ShownAsText):
    """The findings on a program.

    Args:
        script: Absolute path of the script.
        findings: Findings in the order in which a person should look at them: what ends or
            falsifies training, what leaves a device idle, memory, then what costs time, the
            largest loss first. Hints are last. Empty for a fine program.
        num_gpus: Number of GPUs that is assumed.
        is_assumed: Whether that number is the default, as none is given and there is no GPU.
        num_ignored: Number of findings that comments in the program suppress.
        facts: Facts of the run; None if the program was only read.
        not_run: Reason why it was not run although it was to be; else empty.
    """

    script: str
    findings: tuple[Finding, ...]
    num_gpus: int = 0
    is_assumed: bool = False
    num_ignored: int = 0
    facts: Facts | None = None
    not_run: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether no finding is worse than a hint."""
        return all(finding.severity is Severity.HINT for finding in self.findings)

    @property
    def not_estimated(self) -> str:
        """Reason for which the memory of a step is not known, if it was asked for."""
        return "" if self.facts is None else self.facts.memory_unknown

    @property
    def not_judged(self) -> str:
        """Subjects that are not judged, as the program was only read, or reached no step."""
        if self.facts is not None and self.facts.steps:
            return ""
        return "numbers, input, memory, and where operations run"

    def __str__(self) -> str:
        """Return all findings in their order, and their number."""
        counts = Counter(finding.severity.value for finding in self.findings)
        numbers = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items()]
        last = f"{', '.join(numbers) or 'nothing found'} in {self.script}"
        return "\n\n".join([*map(str, self.findings), last])

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as ``--json`` prints it: text, numbers and lists by field name."""
        ran = None
        if self.facts is not None:
            steps = self.facts.main_steps
            ran = {
                "outcome": self.facts.ending.outcome.value,
                "seconds": round(self.facts.ending.seconds, 3),
                "steps": 0 if steps is None else steps.num_steps,
            }
        return {
            "script": self.script,
            "fine": self.is_fine,
            "num_gpus": self.num_gpus,
            "num_gpus_assumed": self.is_assumed,
            "findings": [finding.to_dict() for finding in self.findings],
            "num_ignored": self.num_ignored,
            "run": ran,
            "not_run": self.not_run,
            "not_judged": self.not_judged,
            "memory_not_estimated": self.not_estimated,
        }


def diagnose(
    path: str | os.PathLike[str],
    *,
    as_module: bool = False,
    run: bool = True,
    args: Sequence[str] = (),
    devices: str | None = None,
    time_limit_seconds: float = 120.0,
    num_steps: int = 20,
    gpu_names: bool = False,
    num_gpus: int | None = None,
    gpu_memory_bytes: int | None = None,
    sandbox: bool = False,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    on_read: Callable[[Diagnosis], None] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    r"""Find the mistakes of a training program: run its first steps, and judge what they show.

    A script that does not exist or is not Python is not run.

    Args:
        path: Path of a Python script. Modules of the same project that it imports are read too.
            A file that does not exist or is not Python is a finding.
        as_module: Whether `path` is the name of a module, as for ``python -m``.
        run: Whether to run it for a few steps, in a subprocess; without, it is only read.
        args: Arguments of the script.
        devices: Device spec to configure before it runs, such as ``"cpu:2"`` for two
            stand-ins; None for the environment's, else the script's own. GPUs
            (``"gpu:0@24GiB,gpu:1@12GiB"``) are assumed on a machine without GPUs: a CPU device
            runs for each of them, and for each of `num_gpus`.
        time_limit_seconds: Time limit of the run, above 0.
        num_steps: Number of steps to watch, without those that trace; from 1.
        gpu_names: Whether to present CPU devices to it as GPUs on a machine without GPUs.
        num_gpus: Number of GPUs to assume, from 0. None for the table
            ``[tool.evener.doctor]`` of the nearest ``pyproject.toml`` above the script, else the
            GPUs that are there, else 2.
        gpu_memory_bytes: Memory of each GPU that is assumed, above 0; the memory of a step is
            compared with it. None for that of the GPUs that are there.
        sandbox: Whether to run it where its writes do not reach this folder.
        select: Codes to report, or prefixes of codes such as ``"DOC-4"``; None for
            the table, else all.
        ignore: Codes not to report; None for the table, else none.
        on_read: Called with what reading is sure of, before the program is run.
        on_progress: Called with one line of progress while it runs.

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
        >>> [finding.code for finding in diagnose(script).findings]
        ['DOC-001']
    """
    script = Path(read_module(os.fspath(path)).path if as_module else path)
    chosen = configuration_for(script, select=select, ignore=ignore, num_gpus=num_gpus)
    spec = spec_from(devices, os.environ)
    around = surroundings_here()
    # The memory of GPUs that the spec names on a machine without any.
    caps: list[int | None] = []
    if spec.kind == "gpu" and not around.machine.gpus:
        if spec.source == "argument" or any(gpu.cap_bytes for gpu in spec.gpus):
            caps = [gpu.cap_bytes for gpu in spec.gpus]
    num_gpus = len(caps) if caps and chosen.num_gpus is None else chosen.num_gpus
    around = around.judged_for(num_gpus, gpu_memory_bytes, caps)
    reading = read_program(script)
    # Each assumed GPU needs a CPU device: a strategy takes what it finds.
    is_assumed = not around.machine.gpus and len(around.gpus) > 1 and spec.source == "default"
    is_meant = bool(chosen.num_gpus) or any(reading.named("tf.distribute.MirroredStrategy"))
    if caps or (is_assumed and is_meant):
        devices = f"cpu:{len(caps) or len(around.gpus)}"
    read = _judged(reading, around, None, chosen)
    if not run or any(unread.importer is None for unread in reading.unread):
        return read
    if on_read is not None:
        on_read(read)
    from evener.doctor.watch import WatchLimits, watch

    facts = watch(
        path if as_module else script,
        args,
        as_module=as_module,
        devices=devices,
        gpu_names=gpu_names,
        limits=WatchLimits(
            time_limit_seconds=time_limit_seconds,
            num_steps=num_steps,
            num_loops=max(1, reading.num_trainings()),
        ),
        gpu_memory_bytes=tuple(gpu.memory_total_bytes for gpu in around.gpus),
        sandbox=sandbox,
        on_progress=on_progress,
    )
    return _judged(reading, around, facts, chosen)


def read_program(script: Path) -> Reading:
    sources, unread = read_sources(script)
    return Reading(
        script=str(script.absolute()),
        sources=tuple(sources.values()),
        unread=unread,
        calls=tuple(Walk(sources).calls) if sources else (),
    )


def judge(
    facts: Facts | None,
    reading: Reading,
    surroundings: Surroundings,
    reports: Callable[[str], bool] | None = None,
) -> tuple[tuple[Finding, ...], int]:
    """Return the findings in their order, and the number that comments in the program suppress."""
    case = Case(reading=reading, surroundings=surroundings, facts=facts or NO_RUN)
    sources = {source.path: source for source in reading.sources}
    rules = [rule for rule in all_rules() if reports is None or reports(rule.code)]
    found = [(rule, each) for rule in rules for check in rule.checks for each in check(case)]
    kept = [
        (rule, each)
        for rule, each in found
        if not is_ignored(sources.get(each.location.path), each.location.line, rule.code)
    ]
    return _merged(_explained(kept, facts)), len(found) - len(kept)


def findings_under_run(path: str, num_devices: int, facts: Facts | None = None) -> dict[str, Any]:
    """Return the findings on a program that evener distributes, as a record keeps them.

    Rules on distribution do not apply: evener divides the batch, needs no scope, and gives a
    program's own strategy one replica.
    """
    settled = {rule.code for rule in all_rules() if rule.family is Family.DISTRIBUTION}
    try:
        chosen = configuration_for(Path(path))
        here = surroundings_here()
        surroundings = here.judged_for(len(here.machine.gpus) or num_devices)
        findings, num_ignored = judge(
            facts,
            read_program(Path(path)),
            surroundings,
            lambda code: (
                chosen.reports(code) and code not in settled and code not in _OF_SEVERAL_REPLICAS
            ),
        )
    except Exception as error:
        # A fault of a rule, or of its settings, is told in the record: it never ends the run.
        problem = f"{type(error).__name__}: {error}"
        return {"findings": [], "num_ignored": 0, "problem": problem}
    told = [{"location": each.location, **each.to_dict()} for each in findings]
    return {"findings": told, "num_ignored": num_ignored, "problem": ""}


def _judged(
    reading: Reading, around: Surroundings, facts: Facts | None, chosen: Configuration
) -> Diagnosis:
    findings, num_ignored = judge(facts, reading, around, chosen.reports)
    return Diagnosis(
        script=reading.script,
        findings=findings,
        num_gpus=len(around.gpus),
        is_assumed=around.is_assumed,
        num_ignored=num_ignored,
        facts=facts,
    )


def _explained(
    found: list[tuple[Rule, Violation]], facts: Facts | None
) -> list[tuple[Rule, Violation]]:
    """Make a crash the evidence of the finding that explains it, or give it its cause's code."""
    crash = next((pair for pair in found if pair[0].code == _CRASHED), None)
    raised = facts.ending.raised if facts is not None else None
    if crash is None or raised is None:
        return found
    text = f"{raised.kind}: {raised.message}"
    rest = [pair for pair in found if pair is not crash]
    at = crash[1].location
    for number, (rule, violation) in enumerate(rest):
        is_removed = rule.code == _REMOVED and violation.location == at
        # Without gradients nothing is left to apply, or to unpack.
        is_ungraded = rule.code == "DOC-330" and "apply_gradients" in at.text
        is_why = is_removed or is_ungraded
        if is_why or (rule.explains and re.search(rule.explains, text)):
            told = f"the program ended with {raised.kind}: {raised.message.strip()}"
            line = f"at {at.path}:{at.line}: {at.text}"
            evidence = (*violation.evidence, told, line)
            rest[number] = (rule, replace(violation, evidence=evidence, severity=Severity.ERROR))
            return rest
    for rule in all_rules():
        is_removed = rule.code == _REMOVED and successor_in(text) is not None
        if is_removed or (rule.is_cause and re.search(rule.explains, text)):
            return [(rule, replace(crash[1], severity=Severity.ERROR)), *rest]
    return found


def _order(rule: Rule, violation: Violation) -> tuple[bool, int, int, bool, float, int]:
    """Return the position of a violation: hints last, then what a person should do first."""
    severity = violation.severity or rule.severity
    # Late devices and forks stop a program where they stand; a crash is told as such.
    ends = rule.code in (*_FIRST, _CRASHED, _REMOVED, "DOC-010", "DOC-605") or any(
        text.startswith("the program ended with") for text in (violation.what, *violation.evidence)
    )
    is_wrong = severity is Severity.ERROR
    return (
        severity is Severity.HINT,
        0 if ends and is_wrong else 1 + rule.family.rank,
        severity.rank,
        rule.code in _SYMPTOMS,
        -(violation.seconds or 0.0),
        violation.location.line,
    )


def _merged(found: Iterable[tuple[Rule, Violation]]) -> tuple[Finding, ...]:
    """Return one finding for each line of a rule, and for each reason of one."""
    groups: dict[tuple[object, ...], list[tuple[Rule, Violation]]] = {}
    lines: dict[tuple[object, ...], tuple[object, ...]] = {}
    for rule, violation in sorted(found, key=lambda pair: _order(*pair)):
        severity = violation.severity or rule.severity
        line = (rule.code, violation.location.path, violation.location.line)
        cause = (rule.code, severity, violation.why, violation.fix)
        key = lines.setdefault(line, cause)
        groups.setdefault(key, []).append((rule, violation))
    return tuple(_finding(group) for group in groups.values())


def _finding(group: list[tuple[Rule, Violation]]) -> Finding:
    rule, first = group[0]
    evidence = [first.location.text, *first.evidence]
    others = dict.fromkeys(
        each.location for _, each in group[1:] if each.location != first.location
    )
    for other in list(others)[:_MOST_LINES]:
        is_same = other.path == first.location.path
        where = f"line {other.line}" if is_same else f"{other.path}:{other.line}"
        evidence.append(f"also {where}" + (f": {other.text}" if other.text else ""))
    if len(others) > _MOST_LINES:
        evidence.append(f"and {len(others) - _MOST_LINES} more")
    return Finding(
        code=rule.code,
        severity=first.severity or rule.severity,
        file=first.location.path,
        line=first.location.line,
        what=first.what,
        why=first.why or rule.reason,
        fix=first.fix,
        evidence=tuple(dict.fromkeys(text for text in evidence if text)),
        seconds_per_epoch=None if first.seconds is None else round(first.seconds, 3),
    )
