"""Records of runs, read: their files, the activities of the devices in a step, and the figures.

Records of complete runs, of runs that go on, and of runs that crashed are read. Pure Python::

    record.json    description of the run ─┐
    *.jsonl        lines                   ├─► RunRecord ──► activities ──► Summary
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeAlias, cast

import msgspec

from evener.errors import RunError
from evener.plan import Plan

VERSION = 1
"""Version of the format. Readers refuse newer ones; fields may be added under the same number."""

RECORD = "record.json"
EVENTS, METRICS, LOSSES, STEPS = "events.jsonl", "metrics.jsonl", "losses.jsonl", "steps.jsonl"

MOST_BYTES = {EVENTS: 1_000_000, METRICS: 8_000_000, LOSSES: 2_000_000, STEPS: 8_000_000}
"""Largest size of each file. The last line of a full file says that lines are missing."""

FULL = {"full": True}
"""Last line of a full file."""

STOPPED = "stopped by Ctrl-C"
"""Text of the event that ends the record of a run that a person has stopped."""

LEAST_FRACTION = 0.15
"""Fraction of a step from which a limit is named."""

MOST_TEXT = 2_000
"""Largest number of characters of a text in an event."""

_SECRET = (
    "(?:token|secret|passw(?:or)?d|passphrase|credentials?|authorization|(?<![a-z])(?:auth|pass|pwd)"
    "|(?:access|account|api|auth|encryption|private|secret|ssh)[-_.]?key)"
)
_OPTION = re.compile(rf"--?[\w.-]*{_SECRET}", re.IGNORECASE)
_VALUE = re.compile(rf"({_SECRET}[\"']?\s*[=:]).*|(?<=://)[^\s/]+(?=@)", re.IGNORECASE | re.DOTALL)

RecordLine: TypeAlias = Mapping[str, Any]
"""Line of one of the files."""


def without_secrets(command: Iterable[str]) -> list[str]:
    """Return the words of a command line, without values whose names say that they are secret.

    >>> without_secrets(["train.py", "--api-key", "1a", "--lr", "3", "HF_TOKEN=2b", "s3://me:3c@host"])
    ['train.py', '--api-key', '[hidden]', '--lr', '3', 'HF_TOKEN=[hidden]', 's3://[hidden]@host']
    """
    words: list[str] = []
    hides_next = False
    for word in command:
        is_value = hides_next and not word.startswith("--")
        shown = _VALUE.sub(lambda match: f"{match[1] or ''}[hidden]", word)
        words.append("[hidden]" if is_value else shown)
        hides_next = _OPTION.fullmatch(word) is not None
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFinding:
    """Finding of the doctor on the program of a run: its code, ``"error"`` or so, and its texts."""

    code: str
    severity: str
    location: str
    what: str
    why: str
    fix: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDiagnosis:
    findings: tuple[RecordedFinding, ...]
    num_ignored: int
    problem: str


class RunDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``record.json``.

    Attributes:
        began: Begin of the run, ISO 8601.
        devices: Names of the devices that compute, in the order of the metrics.
        plan: Plan at the start.
        inventory: Devices of the machine.
        diagnosis: Findings of the doctor on the program; None if it was not examined.
    """

    version: int
    began: str
    command: tuple[str, ...]
    versions: Mapping[str, str]
    devices: tuple[str, ...]
    plan: Any
    inventory: Mapping[str, Any]
    diagnosis: RecordedDiagnosis | None = None


class RunRecord(RunDescription, frozen=True, kw_only=True):
    """Record of a run, as far as it is there.

    Attributes:
        path: Folder.
        traces: Spans of the traced steps, by number.
        missing: Sentences on what the record lacks.
    """

    path: Path
    plan: Plan
    events: tuple[RecordLine, ...]
    metrics: tuple[RecordLine, ...]
    losses: tuple[RecordLine, ...]
    traces: Mapping[int, tuple[RecordLine, ...]]
    steps: tuple[RecordLine, ...]
    missing: tuple[str, ...]

    @property
    def script(self) -> str:
        """Words of the script and its arguments on the command line; empty if it is not there."""
        words = list(self.command)
        is_first = (k for k, word in enumerate(words) if word.endswith(".py") or word == "-m")
        return shlex.join(words[next(is_first, len(words)) :])

    @property
    def end(self) -> RecordLine | None:
        ends = [event for event in self.events if event.get("event") in ("end", "failed")]
        return ends[-1] if ends else None


def read_records(folder: Path) -> tuple[RunRecord, ...]:
    try:
        if (folder / RECORD).exists():
            return (_read(folder),)
        workers = sorted(folder.glob(f"worker-*/{RECORD}"), key=_number_of_worker)
        if workers:
            return tuple(_read(path.parent) for path in workers)
        what = "is not a folder" if not folder.is_dir() else f"has no {RECORD}"
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
    try:
        fields = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        version = fields["version"]
        if not isinstance(version, int) or version > VERSION:
            raise RunError(
                "RUN-104",
                f"The record in {folder} is of a newer version of evener.",
                why=f"It has the format {version!r}; this evener reads {VERSION}.",
                fix="Install the newer version: pip install --upgrade evener.",
            )
        about = msgspec.convert(fields, RunDescription)
        plan = Plan.from_json(json.dumps(about.plan))
    except (ValueError, TypeError, KeyError, msgspec.MsgspecError) as error:
        raise _unreadable(folder, f"{RECORD}: {type(error).__name__}: {error}") from error
    missing: list[str] = []
    files = {
        name: tuple(_lines(folder / name, missing)) for name in (STEPS, EVENTS, METRICS, LOSSES)
    }
    timed = {
        name: tuple(line for line in lines if isinstance(line.get("time"), int | float))
        for name, lines in files.items()
    }
    traces = {
        line["trace"]: tuple(line["spans"])
        for line in files[STEPS]
        if isinstance(line.get("spans"), list) and isinstance(line.get("trace"), int)
    }

    def fits(step: RecordLine) -> bool:
        count = len(traces.get(step.get("of", -1), ()))
        return count > 0 and len(step.get("begin", ())) == count == len(step.get("end", ()))

    described = {
        **msgspec.structs.asdict(about),
        "command": tuple(without_secrets(about.command)),
        "plan": plan,
    }
    return RunRecord(
        **described,
        path=folder,
        events=timed[EVENTS],
        metrics=timed[METRICS],
        losses=timed[LOSSES],
        traces=traces,
        steps=tuple(filter(fits, files[STEPS])),
        missing=tuple(missing),
    )


def _lines(path: Path, missing: list[str]) -> Iterator[RecordLine]:
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
            fields = None
        if not isinstance(fields, dict):
            broken += 1
        elif cast("RecordLine", fields).get("full"):
            missing.append(f"{path.name} is full: later lines were left out.")
        else:
            yield cast("RecordLine", fields)
    if broken:
        is_last = broken == 1 and not text.endswith("\n")
        many = "Its last line" if is_last else f"{broken} lines"
        missing.append(f"{path.name}: {many} cannot be read, as after a crash.")


def _unreadable(folder: Path, why: str) -> RunError:
    return RunError(
        "RUN-105",
        f"The record in {folder} cannot be read.",
        why=f"{why}.",
        fix="Check the permissions of the folder and its files; a damaged record cannot be mended.",
    )


WAIT, COPY, IDLE = "wait", "copy", "idle"
"""Kinds of gaps: another device computes a needed result; the result is copied, summed or joined;
the last result was its own, and the device adds up, or waits for the host."""

OTHER_WORKERS = "other workers"
"""Name in place of a device, for results of other workers and their exchange."""

COMPUTE = ("forward", "forward + backward", "backward", "step")
"""Kinds of spans in which a device computes a part of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    kind: str
    begin: float
    end: float
    other: str = ""
    stage: int | None = None
    micro_batch: int | None = None

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def activities(
    spans: Sequence[Mapping[str, Any]], step: Mapping[str, Any]
) -> dict[str, list[Activity]]:
    """Return the activities of each device in a step, in order: tasks, and gaps with their cause.

    ::

        gpu:0   forward + backward |          waits for gpu:1           | copy | update |
        gpu:1         forward + backward, a larger part                 | update |......|
                                                          last result that the update needs

    A gap before a task ends when the last result that the task needs has arrived. Until another
    device has computed that result, the device waits for it; from then on, it is on its way.

    >>> spans = [{"device": "gpu:0", "kind": "forward"}, {"device": "gpu:1", "kind": "forward"},
    ...          {"device": "gpu:0", "kind": "update", "after": [0, 1]}]
    >>> rows = activities(spans, {"begin": [0, 0, 900], "end": [200, 800, 1000]})
    >>> [(each.kind, each.other, round(each.seconds * 1e6)) for each in rows["gpu:0"]]
    [('forward', '', 200), ('wait', 'gpu:1', 600), ('copy', 'gpu:1', 100), ('update', '', 100)]
    """
    begins, ends = [b / 1e6 for b in step["begin"]], [e / 1e6 for e in step["end"]]
    for number, span in enumerate(spans):
        for before in span.get("after", ()):
            # Nothing waits for the reading of an end, so a busy host may read it late. A result is
            # there when a task begins that needs it.
            ends[before] = min(ends[before], max(begins[number], begins[before]))
    last = max(range(len(ends)), key=ends.__getitem__)
    rows: dict[str, list[Activity]] = {}
    until: dict[str, float] = {}
    for number in sorted(range(len(spans)), key=lambda number: (begins[number], ends[number])):
        span = spans[number]
        row = rows.setdefault(span["device"], [])
        now = until.get(span["device"], 0.0)
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
        until[span["device"]] = max(now, ends[number])
    for device, row in rows.items():
        if ends[last] > until[device]:
            other = spans[last]["device"]
            row.append(Activity(kind=WAIT, begin=until[device], end=ends[last], other=other))
    return rows


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
    compute: float
    update: float
    once: float
    copy: float
    wait: Mapping[str, float]
    idle: float
    length: float


def time_of(row: Sequence[Activity], length: float) -> DeviceTime:
    """Return the seconds of a device by kind; overlapping tasks count once, for the first."""
    seconds: dict[str, float] = dict.fromkeys(("compute", "update", "once", COPY, IDLE), 0.0)
    wait: dict[str, float] = {}
    now = 0.0
    for each in row:
        counted = max(0.0, each.end - max(each.begin, now))
        now = max(now, each.end)
        if each.kind == WAIT:
            wait[each.other] = wait.get(each.other, 0.0) + counted
        else:
            seconds["compute" if each.kind in COMPUTE else each.kind] += counted
    return DeviceTime(**seconds, wait=wait, length=length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of a run; None where nothing was measured.

    Attributes:
        state: ``"ended"``, ``"stopped"`` by Ctrl-C, ``"failed"``, or ``"no end"`` of a run that
            goes on or was killed.
        seconds: Time from the first to the last line.
        num_samples: Samples that were trained on.
        samples_per_second: Median of the samples per second, without the first quarter.
        step_seconds: Median of the times from one step to the next, without the first quarter.
        shares: Last share of each device.
        inside: Seconds of each device in a recorded step: the mean of the half of the steps whose
            lengths are nearest to the median, since others had disturbances of their own.
        inside_seconds: Median length of the recorded steps, from first to last task.
        num_steps: Number of recorded steps of the usual kind.
        losses: Last values of losses and metrics.
    """

    state: str
    seconds: float
    num_samples: int | None
    samples_per_second: float | None
    step_seconds: float | None
    predicted_step_seconds: float | None
    shares: Mapping[str, float]
    inside: Mapping[str, DeviceTime]
    inside_seconds: float | None
    num_steps: int
    losses: Mapping[str, float | str]

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def summarise(record: RunRecord) -> Summary:
    steps = sorted(usual_steps(record), key=step_length)
    quarter = len(steps) // 4
    times: dict[str, list[DeviceTime]] = {}
    for step in steps[quarter : len(steps) - quarter]:
        for device, row in activities(record.traces[step["of"]], step).items():
            times.setdefault(device, []).append(time_of(row, step_length(step)))
    predicted = record.plan.predicted
    last = record.metrics[-1] if record.metrics else {}
    losses: dict[str, float | str] = {}
    for line in record.losses:
        losses.update(line.get("values", {}))
    end = record.end
    state = "no end" if end is None else "ended" if end["event"] == "end" else "failed"
    return Summary(
        state="stopped" if end is not None and end.get("text") == STOPPED else state,
        seconds=max(
            (line["time"] for line in (*record.events, *record.metrics, *record.losses)),
            default=0.0,
        ),
        num_samples=last.get("samples"),
        samples_per_second=_typical(record.metrics, "samples_per_second"),
        step_seconds=_typical(record.metrics, "step_seconds"),
        predicted_step_seconds=predicted.step_seconds if predicted else None,
        shares=dict(zip(record.devices, last.get("share", ()), strict=False)),
        inside={device: _mean(each) for device, each in times.items()},
        inside_seconds=median(map(step_length, steps)) if steps else None,
        num_steps=len(steps),
        losses=losses,
    )


def limit_of(summary: Summary, script: str = "") -> str:
    """Return what takes the largest part of a step beside computing.

    With the words of a script on the command line, also a command that tells more.
    """
    step, inside = summary.step_seconds, summary.inside_seconds
    if not step or not inside or not summary.inside:
        return "Not known: no step was recorded."
    outside = max(0.0, step - inside) / step
    is_input = (
        "is outside of the step: input data, callbacks and Python. Larger batches, "
        "steps_per_execution in compile, and Dataset.prefetch make it smaller"
    )
    parts = [(outside, is_input)]
    for device, time in summary.inside.items():
        length = (time.length or inside) / (1.0 - outside or 1.0)
        for other, seconds in time.wait.items():
            parts.append((seconds / length, f"{device} waits for {other}. Other shares may help"))
        copies = f"{device} waits for copies and sums. Larger batches need fewer of them"
        parts += [
            (time.copy / length, copies),
            (time.update / length, f"{device} updates variables"),
            (time.once / length, f"{device} computes what is not divided"),
        ]
    fraction, words = max(parts)
    sentence = f"{fraction:.0%} of a step ".replace("%", " %") + words + "."
    command = "doctor" if words == is_input else "run --plan auto"
    if fraction < LEAST_FRACTION:
        sentence = "The devices compute for most of the step: more or faster devices would help."
        command = "bench"
    return f"{sentence} Next: evener {command} {script}" if script else sentence


def usual_steps(record: RunRecord) -> list[RecordLine]:
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
    steps = sorted(usual_steps(record), key=step_length)
    if not steps:
        return {}
    step = steps[len(steps) // 2]
    return activities(record.traces[step["of"]], step)


def step_length(step: RecordLine) -> float:
    return max(step["end"]) / 1e6


def _mean(times: Sequence[DeviceTime]) -> DeviceTime:
    names = ("compute", "update", "once", "copy", "idle", "length")
    others = dict.fromkeys(other for time in times for other in time.wait)
    return DeviceTime(
        **{name: mean(getattr(time, name) for time in times) for name in names},
        wait={other: mean(time.wait.get(other, 0.0) for time in times) for other in others},
    )


def _typical(metrics: tuple[RecordLine, ...], name: str) -> float | None:
    values = [line[name] for line in metrics[len(metrics) // 4 :] if line.get(name)]
    return median(values) if values else None
