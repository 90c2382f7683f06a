"""Parts of the page of a run, differences of two runs, and their HTML by the templates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from evener import __version__
from evener.base.text import format_bytes, format_seconds, printable
from evener.plan import Plan
from evener.recording.reading import (
    Line,
    RecordedDiagnosis,
    RunRecord,
    Summary,
    summarise,
    typical_step,
)
from evener.report.page.charts import Chart, Point, Timeline, chart, fractions, timeline

# Parts of the page of a run.

MOST_EVENTS = 300
"""Largest number of events in the table; the first and the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Timeline of a worker, whose clock is its own."""

    name: str  # Name of the worker; empty if there is one process
    timeline: Timeline | None  # Timeline of its typical step; None if no step was recorded
    # Time of its devices by kind: class, words, fraction of a step
    fractions: tuple[tuple[str, list[tuple[str, str, float]]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """All that the page shows of a run."""

    name: str  # Name of the folder
    record: RunRecord  # Record of the first worker
    summary: Summary  # Figures
    figures: tuple[tuple[str, str], ...]  # Name and text of the figures at the top
    workers: tuple[Worker, ...]  # Timelines
    # Rows of the plan: share, and stages with device and layers
    plan: tuple[tuple[str, float, list[tuple[str, str]]], ...]
    # Rows of the comparison with the plan: what, predicted, measured
    predicted: tuple[tuple[str, str, str], ...]
    charts: tuple[Chart, ...]  # Charts over time
    gathered: tuple[str, ...]  # Operations that were computed once for the batch
    gathered_cost: str  # Sentence on what they cost
    outside: str  # Sentence on the time outside of steps
    events: tuple[tuple[str, str, str, str], ...]  # Time, worker, kind and text of events
    num_events: int  # Number of all events
    missing: tuple[str, ...]  # Sentences on what the record lacks


def view_of(records: Sequence[RunRecord]) -> RunView:
    """Return what the page shows of a run."""
    first, many = records[0], len(records) > 1
    summary = summarise(first)
    events = _events(records)
    name = first.path.resolve().parent.name if many else first.path.resolve().name
    missing = [f"{r.path.name}: {text}" if many else text for r in records for text in r.missing]
    return RunView(
        name=name,
        record=first,
        summary=summary,
        figures=tuple(_figures(summary)),
        workers=tuple(_worker(record, record.path.name if many else "") for record in records),
        plan=tuple(_plan_rows(first.plan, summary.shares)),
        predicted=tuple(_predicted(first, summary)),
        charts=tuple(_charts(records, summary.seconds)),
        gathered=tuple(str(e["text"]) for e in first.events if e.get("event") == "gathered"),
        gathered_cost=_gathered_cost(summary),
        outside=_outside(summary),
        events=(*events[: MOST_EVENTS // 2], *events[MOST_EVENTS // 2 :][-MOST_EVENTS // 2 :]),
        num_events=len(events),
        missing=(*missing, *_not_there(first, summary)),
    )


def _figures(summary: Summary) -> list[tuple[str, str]]:
    state = {"ended": "ended", "failed": "failed", "no end": "no end: it runs, or was killed"}
    rate, step = summary.samples_per_second, summary.step_seconds
    found = [
        ("state", state[summary.state]),
        ("recorded", format_seconds(summary.seconds)),
        ("samples", "not counted" if summary.num_samples is None else f"{summary.num_samples:,}"),
        ("samples per second", "not measured" if rate is None else format_number(rate)),
        ("a step", "not measured" if step is None else format_seconds(step)),
    ]
    numbers = [(k, v) for k, v in summary.losses.items() if not k.startswith(("gpu:", "cpu:"))]
    return found + [(name, format_number(value)) for name, value in numbers[:6]]


def format_number(value: float | str) -> str:
    """Return a figure with four digits, or all digits before the point.

    >>> format_number(21987.3), format_number(0.123456), format_number("nan")
    ('21,987', '0.1235', 'nan')
    """
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _worker(record: RunRecord, name: str) -> Worker:
    summary = summarise(record)
    return Worker(
        name=name,
        timeline=timeline(typical_step(record), summary.num_steps),
        fractions=tuple((device, fractions(time)) for device, time in summary.inside.items()),
    )


def _plan_rows(
    plan: Plan, shares: Mapping[str, float]
) -> list[tuple[str, float, list[tuple[str, str]]]]:
    rows: list[tuple[str, float, list[tuple[str, str]]]] = []
    total = sum(replica.share for replica in plan.replicas) or 1.0
    for replica in plan.replicas:
        share = replica.share / total
        parts = f", {replica.num_micro_batches} micro-batches" * (replica.num_micro_batches > 1)
        now = shares.get(replica.stages[0].device)
        later = "" if now is None or abs(now - share) < 0.0005 else f", {now:.1%} at the end"
        stages = [(s.device, _layers(s.layers)) for s in replica.stages]
        rows.append((f"{share:.1%} of each batch{later}{parts}".replace("%", " %"), share, stages))
    return rows


def _layers(patterns: Sequence[str]) -> str:
    return "all layers" if tuple(patterns) in ((), ("*",)) else ", ".join(patterns)


def _predicted(record: RunRecord, summary: Summary) -> list[tuple[str, str, str]]:
    predicted, rows = record.plan.predicted, list[tuple[str, str, str]]()
    measured = {d: time.compute for d, time in summary.inside.items()}
    if predicted is not None:
        step = summary.step_seconds
        rows.append(
            ("a step", format_seconds(predicted.step_seconds), format_seconds(step) if step else "")
        )
        for device, seconds in predicted.busy_seconds.items():
            found = format_seconds(measured[device]) if device in measured else ""
            rows.append((f"{device}: forward and backward", format_seconds(seconds), found))
    needs = [e for e in record.events if e.get("event") == "memory"]
    need: Mapping[str, Any] = needs[-1].get("bytes", {}) if needs else {}
    need = need or (dict(predicted.peak_bytes) if predicted else {})
    for device, size in need.items():
        peaks = [_peak(line, record.devices, device) for line in record.metrics]
        peak = max((p for p in peaks if p is not None), default=None)
        found = "not measured on a CPU" if peak is None else format_bytes(peak)
        rows.append((f"{device}: peak memory", format_bytes(size), found))
    return rows


def _peak(line: Line, devices: Sequence[str], device: str) -> int | None:
    peaks = dict(zip(devices, line.get("memory_peak", ()), strict=False))
    return peaks.get(device)


def _charts(records: Sequence[RunRecord], seconds: float) -> list[Chart]:
    record = records[0]
    events = [(e["time"], str(e.get("text", ""))) for e in record.events if _is_marked(e)]

    def over_time(name: str) -> list[Point]:
        return [(line["time"], line.get(name)) for line in record.metrics]

    def per_device(name: str) -> list[tuple[str, list[Point]]]:
        return [(device, _of_device(records, name, k)) for k, device in enumerate(record.devices)]

    def percent(value: float) -> str:
        return f"{value * 100:.3g} %"

    host = [("process on the host", over_time("process_bytes"))]
    made = [
        chart(
            "Samples per second",
            [("all devices", over_time("samples_per_second"))],
            seconds=seconds,
            text=format_number,
            events=events,
        ),
        chart("Shares", per_device("share"), seconds=seconds, text=percent, events=events),
        chart(
            "Busy with forward and backward passes",
            per_device("busy"),
            seconds=seconds,
            text=percent,
            events=events,
        ),
        _memory_chart("Memory of devices", per_device("memory"), seconds),
        _memory_chart("Memory of the process", host, seconds),
        *(
            chart(name, [(name, points)], seconds=seconds, text=format_number, from_zero=False)
            for name, points in _losses(record).items()
        ),
    ]
    return [each for each in made if each is not None]


def _memory_chart(
    title: str, series: Sequence[tuple[str, Sequence[Point]]], seconds: float
) -> Chart | None:
    most = max((v for _, points in series for _, v in points if v is not None), default=0.0)
    unit = 1024.0 ** int(math.log(max(most, 1.0), 1024))
    return chart(title, series, seconds=seconds, text=format_bytes, unit=unit)


def _losses(record: RunRecord) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for line in record.losses:
        for name, value in line.get("values", {}).items():
            point = line["time"], value if isinstance(value, int | float) else None
            found.setdefault(str(name), []).append(point)
    return dict(list(found.items())[:20])


def _of_device(records: Sequence[RunRecord], name: str, number: int) -> list[Point]:
    """Return the points of a device, from the record of the worker that has measured it."""
    found: list[Point] = []
    for record in records:
        found = [(line["time"], _item(line.get(name), number)) for line in record.metrics]
        if any(value is not None for _, value in found):
            break
    return found


def _item(values: Any, number: int) -> float | None:
    return values[number] if isinstance(values, list) and number < len(values) else None


def _is_marked(event: Line) -> bool:
    return event.get("event") in ("shares", "warning", "failed", "log", "not recorded")


def _gathered_cost(summary: Summary) -> str:
    once = {d: t.once for d, t in summary.inside.items() if t.once}
    if not once or not summary.inside_seconds:
        return ""
    device, seconds = max(once.items(), key=lambda item: item[1])
    part = f"{seconds / summary.inside_seconds:.1%}".replace("%", " %")
    return f"Computed once: {format_seconds(seconds)} on {device}, {part} of a recorded step."


def _outside(summary: Summary) -> str:
    inside, step = summary.inside_seconds, summary.step_seconds
    if inside is None or step is None or step <= inside:
        return ""
    part = f"{(step - inside) / step:.0%}".replace("%", " %")
    return (
        f"A step is {format_seconds(step)} from begin to begin, of which the devices take "
        f"{format_seconds(inside)}. The rest, {part}, is outside of the step: input data, "
        "callbacks and Python."
    )


def _events(records: Sequence[RunRecord]) -> list[tuple[str, str, str, str]]:
    many = len(records) > 1
    found = [
        (float(event["time"]), record.path.name if many else "", event)
        for record in records
        for event in record.events
        if event.get("event") != "memory"
    ]
    found.sort(key=lambda item: item[0])
    return [
        (f"{at:.1f} s", worker, str(event.get("event", "")), str(event.get("text", "")))
        for at, worker, event in found
    ]


def _not_there(record: RunRecord, summary: Summary) -> list[str]:
    found: list[str] = []
    if not record.metrics:
        found.append("No metrics: the run ended before its first second, or none was trained.")
    if not record.losses:
        found.append("No losses: nothing called fit, or Recording.log.")
    if not summary.num_steps:
        found.append(
            "No timeline: no step was partitioned and timed. Eager steps and deterministic "
            "operations are not timed."
        )
    return found


# Differences of two runs: their settings, and their figures.


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Row of the comparison."""

    what: str  # Name of the setting or the figure
    first: str  # Text of the first run
    second: str  # Text of the second run
    change: str = ""  # Ratio of a figure; empty for a setting


def differences(first: RunView, second: RunView) -> tuple[list[Difference], list[Difference]]:
    """Return the settings that differ, and the figures of both runs."""
    settings = [
        Difference(what=what, first=a, second=b)
        for (what, a), (_, b) in zip(_settings(first), _settings(second), strict=True)
        if a != b
    ]
    return settings, list(_differences_figures(first, second))


def _settings(run: RunView) -> list[tuple[str, str]]:
    record = run.record
    shares = " ".join(f"{share:.3f}" for _, share, _ in run.plan)
    return [
        ("command", " ".join(record.command)),
        ("devices", ", ".join(record.devices)),
        ("layout", record.plan.layout),
        ("shares at the start", shares),
        *((f"version of {name}", record.versions.get(name, "")) for name in _VERSIONS),
        ("gathered", "; ".join(run.gathered) or "nothing"),
        ("findings of the doctor", _findings(record.diagnosis)),
    ]


def _findings(diagnosis: RecordedDiagnosis | None) -> str:
    if diagnosis is None or diagnosis.problem:
        return "not examined"
    return "; ".join(f"{each.code} {each.location}" for each in diagnosis.findings) or "none"


def _differences_figures(first: RunView, second: RunView) -> list[Difference]:
    a, b = first.summary, second.summary
    found = [
        _figure("samples per second", a.samples_per_second, b.samples_per_second, format_number),
        _figure("a step", a.step_seconds, b.step_seconds, format_seconds),
        _figure("inside of a recorded step", a.inside_seconds, b.inside_seconds, format_seconds),
    ]
    for name in dict.fromkeys([*a.losses, *b.losses]):
        one_side, other = a.losses.get(name), b.losses.get(name)
        if isinstance(one_side, str) or isinstance(other, str):
            found.append(Difference(what=name, first=str(one_side), second=str(other)))
        else:
            found.append(_figure(name, one_side, other, format_number))
    return found


def _figure(
    what: str, first: float | None, second: float | None, text: Callable[[float], str]
) -> Difference:
    change = f"{second / first:.3g} times" if first and second is not None else ""
    return Difference(
        what=what,
        first="" if first is None else text(first),
        second="" if second is None else text(second),
        change=change,
    )


_VERSIONS = ("evener", "tensorflow", "keras", "python")


# HTML of the page. All texts of a record are escaped, and lose their control codes.


def render_page(runs: Sequence[Sequence[RunRecord]]) -> str:
    """Return the page of one run, or of two side by side, as HTML that needs nothing else."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    views = [view_of(records) for records in runs]
    changed = differences(views[0], views[1]) if len(views) == 2 else None
    page = environment.get_template("page.html.j2")
    return page.render(runs=views, changed=changed, version=__version__)
