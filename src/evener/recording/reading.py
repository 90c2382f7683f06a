"""Reader of records.

The files and their format, the activities of the devices in a step, the figures.

Records of complete runs, of runs that go on, and of runs that crashed. Pure Python.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, cast

from evener.errors import RunError
from evener.plan import Plan

# Format of a record: the names of its files, its version, its bounds, and what it leaves out.

VERSION = 1
"""Version of the format. Readers refuse newer ones; fields may be added under the same number."""

RECORD = "record.json"
EVENTS, METRICS, LOSSES, STEPS = "events.jsonl", "metrics.jsonl", "losses.jsonl", "steps.jsonl"

MOST_BYTES = {EVENTS: 1_000_000, METRICS: 8_000_000, LOSSES: 2_000_000, STEPS: 8_000_000}
"""Largest size of each file. The last line of a full file says that lines are missing."""

FULL = {"full": True}
"""Last line of a full file."""

MOST_TEXT = 2_000
"""Largest number of characters of a text in an event."""

_SECRET = (
    "(?:token|secret|passw(?:or)?d|passphrase|credentials?|authorization|(?<![a-z])(?:auth|pass|pwd)"
    "|(?:access|account|api|auth|encryption|private|secret|ssh)[-_.]?key)"
)
_OPTION = re.compile(rf"--?[\w.-]*{_SECRET}", re.IGNORECASE)
_VALUE = re.compile(rf"({_SECRET}[\"']?\s*[=:]).*|(?<=://)[^\s/]+(?=@)", re.IGNORECASE | re.DOTALL)


def without_secrets(command: Iterable[str]) -> list[str]:
    """Return the words of a command line, without values whose names say that they are secret.

    >>> without_secrets(["train.py", "--api-key", "1a", "--lr", "3", "HF_TOKEN=2b", "s3://me:3c@host"])
    ['train.py', '--api-key', '[hidden]', '--lr', '3', 'HF_TOKEN=[hidden]', 's3://[hidden]@host']
    """
    words: list[str] = []
    hides_next = False
    for word in command:
        is_value = hides_next and not word.startswith("--")
        shown = _VALUE.sub(lambda found: f"{found[1] or ''}[hidden]", word)
        words.append("[hidden]" if is_value else shown)
        hides_next = _OPTION.fullmatch(word) is not None
    return words


# Activities of the devices in a recorded step: tasks, and the gaps between them with their cause.
#
# ::
#
#     gpu:0   forward + backward |          waits for gpu:1           | copy | update |
#     gpu:1         forward + backward, a larger part                 | update |......|
#                                                       last result that the update needs
#
# A gap before a task ends when the last result that the task needs has arrived. Until another
# device
# has computed that result, the device waits for it; from then on, the result is on its way.

WAIT, COPY, IDLE = "wait", "copy", "idle"
"""Kinds of gaps: another device computes a needed result; the result is copied, summed or joined;
the last result was its own, and the device adds up, or waits for the host."""

OTHER_WORKERS = "other workers"
"""Name in place of a device, for results of other workers and their exchange."""

COMPUTE = ("forward", "forward + backward", "backward", "weights", "step")
"""Kinds of spans in which a device computes a part of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Activity of a device."""

    kind: str  # Kind of the span, or ``WAIT``, ``COPY`` or ``IDLE``
    begin: float  # Begin, in seconds since the begin of the step
    end: float  # End, in seconds
    # Device that is waited for, or that a result comes from; empty if there is none
    other: str = ""
    stage: int | None = None  # Number of the stage; None without stages
    micro_batch: int | None = None  # Number of the micro-batch; None if there is one

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.end - self.begin


def activities(
    spans: Sequence[Mapping[str, Any]], step: Mapping[str, Any]
) -> dict[str, list[Activity]]:
    """Return the activities of each device in a step, in order."""
    begins, ends = _times(spans, step)
    last = max(range(len(ends)), key=ends.__getitem__)
    of_device: dict[str, list[int]] = {}
    for number in sorted(range(len(spans)), key=lambda number: (begins[number], ends[number])):
        of_device.setdefault(spans[number]["device"], []).append(number)
    found: dict[str, list[Activity]] = {}
    for device, numbers in of_device.items():
        row = found[device] = []
        now = 0.0
        for number in numbers:
            span = spans[number]
            if begins[number] > now:
                row += _gap(now, begins[number], span, spans, ends)
            row.append(
                Activity(
                    kind=span["kind"],
                    begin=begins[number],
                    end=ends[number],
                    stage=span.get("stage"),
                    micro_batch=span.get("micro_batch"),
                )
            )
            now = max(now, ends[number])
        if ends[last] > now:
            other = spans[last]["device"]
            row.append(Activity(kind=WAIT, begin=now, end=ends[last], other=other))
    return found


def _times(
    spans: Sequence[Mapping[str, Any]], step: Mapping[str, Any]
) -> tuple[list[float], list[float]]:
    """Return the begins and ends in seconds.

    Nothing waits for the reading of an end, so a busy host may read it late. A result is there when
    a task begins that needs it.
    """
    begins, ends = [b / 1e6 for b in step["begin"]], [e / 1e6 for e in step["end"]]
    for number, span in enumerate(spans):
        for before in span.get("after", ()):
            ends[before] = min(ends[before], max(begins[number], begins[before]))
    return begins, ends


def _gap(
    begin: float,
    end: float,
    span: Mapping[str, Any],
    spans: Sequence[Mapping[str, Any]],
    ends: Sequence[float],
) -> list[Activity]:
    """Return the gap before a task: the device waits, then a result is on its way."""
    if span.get("joins"):
        # Their clocks are not ours: waiting and exchange are one.
        return [Activity(kind=WAIT, begin=begin, end=end, other=OTHER_WORKERS)]
    latest = max(span.get("after", ()), key=ends.__getitem__, default=None)
    if latest is None or spans[latest]["device"] == span["device"]:
        return [Activity(kind=IDLE, begin=begin, end=end)]
    other, computed = spans[latest]["device"], min(ends[latest], end)
    if computed <= begin:
        return [Activity(kind=COPY, begin=begin, end=end, other=other)]
    wait = Activity(kind=WAIT, begin=begin, end=computed, other=other)
    if computed == end:
        return [wait]
    return [wait, Activity(kind=COPY, begin=computed, end=end, other=other)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Seconds of a device in a step."""

    compute: float  # Forward and backward passes
    update: float  # Updates of variables
    once: float  # Other tasks that are computed once for the batch
    copy: float  # Results on their way, and their sums
    wait: Mapping[str, float]  # Waiting, by the device that is waited for
    idle: float  # Gaps after results of its own
    length: float  # The whole step


def time_of(row: Sequence[Activity], length: float) -> DeviceTime:
    """Return the seconds of a device by kind; overlapping tasks count once, for the first."""
    seconds: dict[str, float] = {}
    wait: dict[str, float] = {}
    now = 0.0
    for each in row:
        counted = max(0.0, each.end - max(each.begin, now))
        now = max(now, each.end)
        kind = "compute" if each.kind in COMPUTE else each.kind
        if kind == WAIT:
            wait[each.other] = wait.get(each.other, 0.0) + counted
        else:
            seconds[kind] = seconds.get(kind, 0.0) + counted
    return DeviceTime(
        compute=seconds.get("compute", 0.0),
        update=seconds.get("update", 0.0),
        once=seconds.get("once", 0.0),
        copy=seconds.get(COPY, 0.0),
        wait=wait,
        idle=seconds.get(IDLE, 0.0),
        length=length,
    )


# Reader of records: of complete ones, of runs that go on, and of runs that crashed.

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFinding:
    """Finding of the doctor on the program of a run."""

    code: str  # Code, such as ``"DOC-402"``
    severity: str  # ``"error"``, ``"warning"`` or ``"hint"``
    location: str  # File and line
    what: str  # Sentence that says what is wrong
    why: str  # Effect on the training
    fix: str  # Code to write instead
    evidence: tuple[str, ...]  # Lines of the program, and other facts


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDiagnosis:
    """Findings of the doctor on the program of a run."""

    findings: tuple[RecordedFinding, ...]  # Findings, as the doctor orders them
    num_ignored: int  # Number of findings that comments in the program suppress
    problem: str  # Reason why the program could not be examined; empty if it was


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Record of a run, as far as it is there."""

    path: Path  # Folder
    began: str  # Begin of the run, ISO 8601
    command: tuple[str, ...]  # Command line
    versions: Mapping[str, str]  # Versions by name, such as ``"tensorflow"``
    devices: tuple[str, ...]  # Names of the devices that compute, in the order of the metrics
    plan: Plan  # Plan at the start
    inventory: Mapping[str, Any]  # Devices of the machine
    # Findings of the doctor on the program; None if it was not examined
    diagnosis: RecordedDiagnosis | None
    events: tuple[Line, ...]  # Lines of events
    metrics: tuple[Line, ...]  # Lines of metrics
    losses: tuple[Line, ...]  # Lines of losses
    traces: Mapping[int, tuple[Line, ...]]  # Spans of the traced steps, by number
    steps: tuple[Line, ...]  # Lines of recorded steps
    missing: tuple[str, ...]  # Sentences on what the record lacks

    @property
    def end(self) -> Line | None:
        """Event of the end of the run; None if it runs, or was killed."""
        ends = [event for event in self.events if event.get("event") in ("end", "failed")]
        return ends[-1] if ends else None


def read_records(folder: Path) -> tuple[RunRecord, ...]:
    """Return the record in a folder, or those of several workers, the first worker first."""
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


# Figures of a run, from its record.


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of a run; None where nothing was measured."""

    state: str  # ``"ended"``, ``"failed"``, or ``"no end"`` of a run that goes on or was killed
    seconds: float  # Time from the first to the last line
    num_samples: int | None  # Samples that were trained on
    samples_per_second: float | None  # Median of the samples per second, without the first quarter
    # Median of the times from one step to the next, without the first quarter
    step_seconds: float | None
    predicted_step_seconds: float | None  # Prediction of the plan
    shares: Mapping[str, float]  # Last share of each device
    # Seconds of each device in a recorded step: the mean of the half of the steps whose lengths are
    # nearest to the median, since others had disturbances of their own
    inside: Mapping[str, DeviceTime]
    inside_seconds: float | None  # Median length of the recorded steps, from first to last task
    num_steps: int  # Number of recorded steps of the usual kind
    losses: Mapping[str, float | str]  # Last values of losses and metrics

    def to_json(self) -> str:
        """Return the figures as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


def summarise(record: RunRecord) -> Summary:
    """Return the figures of a run."""
    end = record.end
    lines = [*record.events, *record.metrics, *record.losses]
    steps = usual_steps(record)
    predicted = record.plan.predicted
    last = record.metrics[-1] if record.metrics else {}
    return Summary(
        state="no end" if end is None else "ended" if end["event"] == "end" else "failed",
        seconds=max((line["time"] for line in lines), default=0.0),
        num_samples=last.get("samples"),
        samples_per_second=_typical(record.metrics, "samples_per_second"),
        step_seconds=_typical(record.metrics, "step_seconds"),
        predicted_step_seconds=predicted.step_seconds if predicted else None,
        shares=dict(zip(record.devices, last.get("share", ()), strict=False)),
        inside=_inside(record, steps),
        inside_seconds=median(map(length_of, steps)) if steps else None,
        num_steps=len(steps),
        losses=_last_values(record),
    )


def usual_steps(record: RunRecord) -> list[Line]:
    """Return the recorded steps of the most frequent trace that trains, without its first one."""
    trained = [
        step
        for step in record.steps
        if any(span.get("kind") not in ("update", "once") for span in record.traces[step["of"]])
    ]
    counts = Counter(step["of"] for step in trained)
    usual = max(counts, key=counts.__getitem__, default=None)
    steps = [step for step in trained if step["of"] == usual]
    # The first step selects kernels and allocates memory.
    return steps[1:] if len(steps) > 1 else steps


def typical_step(record: RunRecord) -> dict[str, list[Activity]]:
    """Return the activities of the recorded step of median length; empty if there is none."""
    steps = sorted(usual_steps(record), key=length_of)
    if not steps:
        return {}
    step = steps[len(steps) // 2]
    return activities(record.traces[step["of"]], step)


def length_of(step: Line) -> float:
    """Return the seconds from the first begin to the last end of a recorded step."""
    return max(step["end"]) / 1e6


def _inside(record: RunRecord, steps: list[Line]) -> dict[str, DeviceTime]:
    of_device: dict[str, list[DeviceTime]] = {}
    for step in _middle_half(steps):
        for device, row in activities(record.traces[step["of"]], step).items():
            of_device.setdefault(device, []).append(time_of(row, length_of(step)))
    return {device: _mean(times) for device, times in of_device.items()}


def _middle_half(steps: list[Line]) -> list[Line]:
    ordered = sorted(steps, key=length_of)
    quarter = len(ordered) // 4
    return ordered[quarter : len(ordered) - quarter]


def _mean(times: list[DeviceTime]) -> DeviceTime:
    def of(name: str) -> float:
        return mean(getattr(time, name) for time in times)

    others = dict.fromkeys(other for time in times for other in time.wait)
    return DeviceTime(
        compute=of("compute"),
        update=of("update"),
        once=of("once"),
        copy=of("copy"),
        wait={other: mean(time.wait.get(other, 0.0) for time in times) for other in others},
        idle=of("idle"),
        length=of("length"),
    )


def _typical(metrics: tuple[Line, ...], name: str) -> float | None:
    values = [line[name] for line in metrics[len(metrics) // 4 :] if line.get(name)]
    return median(values) if values else None


def _last_values(record: RunRecord) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for line in record.losses:
        values.update(line.get("values", {}))
    return values
