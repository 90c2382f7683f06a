"""Reader of records: of complete ones, of runs that go on, and of runs that crashed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from evener.errors import RunError
from evener.plan import Plan
from evener.recording.format import (
    EVENTS,
    LOSSES,
    METRICS,
    RECORD,
    STEPS,
    VERSION,
    without_secrets,
)

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFinding:
    """Finding of the doctor on the program of a run.

    Attributes:
        code: Code, such as ``"DOC-402"``.
        severity: ``"error"``, ``"warning"`` or ``"hint"``.
        location: File and line.
        what: Sentence that says what is wrong.
        why: Effect on the training.
        fix: Code to write instead.
        evidence: Lines of the program, and other facts.
    """

    code: str
    severity: str
    location: str
    what: str
    why: str
    fix: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDiagnosis:
    """Findings of the doctor on the program of a run.

    Attributes:
        findings: Findings, as the doctor orders them.
        num_ignored: Number of findings that comments in the program suppress.
        problem: Reason why the program could not be examined; empty if it was.
    """

    findings: tuple[RecordedFinding, ...]
    num_ignored: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Record of a run, as far as it is there.

    Attributes:
        path: Folder.
        began: Begin of the run, ISO 8601.
        command: Command line.
        versions: Versions by name, such as ``"tensorflow"``.
        devices: Names of the devices that compute, in the order of the metrics.
        plan: Plan at the start.
        inventory: Devices of the machine.
        diagnosis: Findings of the doctor on the program; None if it was not examined.
        events: Lines of events.
        metrics: Lines of metrics.
        losses: Lines of losses.
        traces: Spans of the traced steps, by number.
        steps: Lines of recorded steps.
        missing: Sentences on what the record lacks.
    """

    path: Path
    began: str
    command: tuple[str, ...]
    versions: Mapping[str, str]
    devices: tuple[str, ...]
    plan: Plan
    inventory: Mapping[str, Any]
    diagnosis: RecordedDiagnosis | None
    events: tuple[Line, ...]
    metrics: tuple[Line, ...]
    losses: tuple[Line, ...]
    traces: Mapping[int, tuple[Line, ...]]
    steps: tuple[Line, ...]
    missing: tuple[str, ...]

    @property
    def end(self) -> Line | None:
        """Event of the end of the run; None if it runs, or was killed."""
        ends = [event for event in self.events if event.get("event") in ("end", "failed")]
        return ends[-1] if ends else None


def read_records(folder: Path) -> tuple[RunRecord, ...]:
    """Return the record in a folder, or those of several workers, the first worker first.

    Args:
        folder: Folder that ``evener run --record`` or ``evener launch --record`` has written.

    Raises:
        RunError: RUN-103 if there is no record, RUN-104 if it is of a newer version of evener,
            RUN-105 if it cannot be read.
    """
    try:
        if (folder / RECORD).exists():
            return (_read(folder),)
        workers = sorted(folder.glob(f"worker-*/{RECORD}"), key=_number_of_worker)
        if workers:
            return tuple(_read(path.parent) for path in workers)
        what = "is no folder" if not folder.is_dir() else f"has no {RECORD}"
    except OSError as error:
        raise _unreadable(folder, error.strerror or str(error)) from error
    raise RunError(
        "RUN-103",
        f"{folder} holds no record of a run.",
        why=f"{folder} {what}.",
        fix="Record a run: evener run --record FOLDER train.py.",
    )


def _number_of_worker(path: Path) -> tuple[float, str]:
    name = path.parent.name.removeprefix("worker-")
    try:
        return float(name), name
    except ValueError:
        return float("inf"), name


def _read(folder: Path) -> RunRecord:
    fields = _description(folder)
    missing: list[str] = []

    def lines(name: str) -> tuple[Line, ...]:
        return tuple(_lines(folder / name, missing))

    steps = lines(STEPS)
    traces = {line["trace"]: tuple(line["spans"]) for line in steps if _is_trace(line)}
    try:
        return RunRecord(
            path=folder,
            began=str(fields["began"]),
            command=tuple(without_secrets(map(str, fields["command"]))),
            versions={str(k): str(v) for k, v in fields["versions"].items()},
            devices=tuple(map(str, fields["devices"])),
            plan=Plan.from_json(json.dumps(fields["plan"])),
            inventory=fields["inventory"],
            diagnosis=_diagnosis(fields.get("diagnosis")),
            events=tuple(e for e in lines(EVENTS) if _is_timed(e)),
            metrics=tuple(m for m in lines(METRICS) if _is_timed(m)),
            losses=tuple(m for m in lines(LOSSES) if _is_timed(m)),
            traces=traces,
            steps=tuple(s for s in steps if s.get("of") in traces and _fits(s, traces)),
            missing=tuple(missing),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(folder, f"{RECORD}: {type(error).__name__}: {error}") from error


def _description(folder: Path) -> dict[str, Any]:
    try:
        fields = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        version = fields["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable(folder, f"{RECORD}: {type(error).__name__}: {error}") from error
    if not isinstance(version, int) or version > VERSION:
        raise RunError(
            "RUN-104",
            f"The record in {folder} is of a newer version of evener.",
            why=f"It has the format {version!r}; this evener reads {VERSION}.",
            fix="Install the newer version: pip install --upgrade evener.",
        )
    return cast("dict[str, Any]", fields)


def _diagnosis(fields: Mapping[str, Any] | None) -> RecordedDiagnosis | None:
    if fields is None:
        return None
    return RecordedDiagnosis(
        findings=tuple(_finding(each) for each in fields["findings"]),
        num_ignored=int(fields["num_ignored"]),
        problem=str(fields["problem"]),
    )


def _finding(fields: Mapping[str, Any]) -> RecordedFinding:
    texts = {name: str(fields[name]) for name in _FINDING_TEXTS}
    return RecordedFinding(**texts, evidence=tuple(map(str, fields["evidence"])))


_FINDING_TEXTS = ("code", "severity", "location", "what", "why", "fix")


def _lines(path: Path, missing: list[str]) -> Iterator[Line]:
    """Yield the lines of a file that are whole."""
    if not path.exists():
        missing.append(f"{path.name} is not there.")
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    broken = 0
    for line in text.splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            broken += 1
            continue
        if not isinstance(fields, dict):
            broken += 1
        elif cast("Line", fields).get("full"):
            missing.append(f"{path.name} is full: later lines were left out.")
        else:
            yield cast("Line", fields)
    if broken:
        is_last = broken == 1 and not text.endswith("\n")
        many = "Its last line" if is_last else f"{broken} lines"
        missing.append(f"{path.name}: {many} cannot be read, as after a crash.")


def _is_timed(line: Line) -> bool:
    return isinstance(line.get("time"), int | float)


def _is_trace(line: Line) -> bool:
    return isinstance(line.get("spans"), list) and isinstance(line.get("trace"), int)


def _fits(step: Line, traces: Mapping[int, tuple[Line, ...]]) -> bool:
    """Return whether a step has a begin and an end for every span of its trace."""
    count = len(traces[step["of"]])
    return len(step.get("begin", ())) == count == len(step.get("end", ()))


def _unreadable(folder: Path, why: str) -> RunError:
    return RunError(
        "RUN-105",
        f"The record in {folder} cannot be read.",
        why=f"{why}.",
        fix="Check the permissions of the folder and its files; a damaged record cannot be mended.",
    )
