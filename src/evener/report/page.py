"""Page of `evener report`: the record of one run, or of two side by side, as one HTML file.

::

    numbers over time       ──► Chart: lines in a box of 1000 x 200 ─┐
    activities of a step    ──► StepTimeline: bars in a box of 1000  ├─► RunView ──► HTML, by the
    events, plan, findings  ──► texts                               ─┘               templates

The labels are text of the page and not of the pictures, which are stretched to the width of the
screen: they stay readable on a phone. Importing it does not import TensorFlow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

import jinja2

from evener import __version__
from evener.base.text import format_bytes, format_seconds, printable
from evener.planner.rebalancing import describe_changes
from evener.recording.reading import (
    COPY,
    IDLE,
    STOPPED,
    WAIT,
    Activity,
    RunRecord,
    Summary,
    limit_of,
    summarise,
    typical_step,
)

WIDTH, HEIGHT = 1000, 200
MOST_POINTS = 240
"""Largest number of points of a line; neighbours are averaged."""
MOST_EVENTS = 300
"""Largest number of events in the table; the first and the last ones."""

Point: TypeAlias = tuple[float, float | None]
"""Seconds and a value; None where nothing is known."""

_NAMES = {
    "forward + backward": "forward and backward",
    "update": "update of variables",
    "once": "computed once for the batch",
    "step": "whole step",
    IDLE: "idle",
}
_LEGEND = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("both", "forward and backward, or a whole step"),
    ("update", "update of variables"),
    ("once", "computed once for the batch"),
    ("copy", "copies and sums from other devices"),
    ("wait", "waits for another device"),
    ("idle", "idle: sums of its own, or the host"),
)
"""Class and meaning of each kind of bar."""
# Bars of work are tall, and those of waiting are flat, so that they differ without colors.
_TOPS = {COPY: 4, WAIT: 7, IDLE: 9}
_CLASSES = {"forward + backward": "both", "step": "both"}
_VERSIONS = ("evener", "tensorflow", "keras", "python")
_MARKED = ("shares", "warning", "failed", "log", "not recorded")
_STATES = {
    "ended": "ended",
    "failed": "failed",
    "no end": "no end: it runs, or was killed",
    "stopped": STOPPED,
}


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
    changed = changes(views[0], views[1]) if len(views) == 2 else None
    page = environment.get_template("page.html.j2")
    return page.render(runs=views, changed=changed, version=__version__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    name: str
    timeline: StepTimeline | None
    fractions: tuple[tuple[str, list[tuple[str, str, float]]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    name: str
    verdict: str
    record: RunRecord
    summary: Summary
    figures: list[tuple[str, str]]
    workers: list[WorkerView]
    plan: list[tuple[str, float, list[tuple[str, str]]]]
    predicted: list[tuple[str, str, str]]
    charts: list[Chart]
    gathered: list[str]
    gathered_cost: str
    outside: str
    events: list[tuple[str, str, str, str]]
    num_events: int
    missing: list[str]


def view_of(records: Sequence[RunRecord]) -> RunView:
    first, many = records[0], len(records) > 1
    summary = summarise(first)
    timed = [
        (float(event["time"]), record.path.name if many else "", event)
        for record in records
        for event in record.events
        if event.get("event") != "memory"
    ]
    events = [
        (f"{at:.1f} s", worker, str(event.get("event", "")), str(event.get("text", "")))
        for at, worker, event in sorted(timed, key=lambda item: item[0])
    ]
    path = first.path.resolve()
    # One scale for the bars of all workers.
    ends = [each.end for r in records for row in typical_step(r).values() for each in row]
    step_length = max(ends, default=0.0)
    missing = [f"{r.path.name}: {text}" if many else text for r in records for text in r.missing]
    rate, step = summary.samples_per_second, summary.step_seconds
    figures = [
        ("state", _STATES[summary.state]),
        ("recorded", format_seconds(summary.seconds)),
        ("samples", "not counted" if summary.num_samples is None else f"{summary.num_samples:,}"),
        ("samples per second", "not measured" if rate is None else format_number(rate)),
        ("a step", "not measured" if step is None else format_seconds(step)),
    ]
    numbers = [(k, v) for k, v in summary.losses.items() if not k.startswith(("gpu:", "cpu:"))]
    changes = [event for event in first.events if event.get("event") == "shares"]
    if changes and "after" in (last := changes[-1]):
        settled = describe_changes(len(changes), int(last["step"]), last["after"])
        figures.append(("shares", settled.removeprefix("shares ")))
    rows: list[tuple[str, float, list[tuple[str, str]]]] = []
    replicas = first.plan.replicas
    total = sum(replica.share for replica in replicas) or 1.0
    for replica in replicas:
        share = replica.share / total
        parts = f", {replica.num_micro_batches} micro-batches" * (replica.num_micro_batches > 1)
        now = summary.shares.get(replica.stages[0].device)
        later = "" if now is None or abs(now - share) < 0.0005 else f", {now:.1%} at the end"
        stages = [
            (s.device, "all layers" if tuple(s.layers) in ((), ("*",)) else ", ".join(s.layers))
            for s in replica.stages
        ]
        rows.append((f"{share:.1%} of each batch{later}{parts}".replace("%", " %"), share, stages))
    lacks: list[str] = []
    if not first.metrics:
        lacks.append("No metrics: the run ended before its first second, or none was trained.")
    if not first.losses:
        lacks.append("No losses: nothing called fit, or Recording.log.")
    if not summary.num_steps:
        lacks.append(
            "No timeline: no step was partitioned and timed. Eager steps and deterministic "
            "operations are not timed."
        )
    return RunView(
        name=f"{first.script or 'a program'} ({path.parent.name if many else path.name})",
        verdict=limit_of(summary, first.script),
        record=first,
        summary=summary,
        figures=figures + [(name, format_number(value)) for name, value in numbers[:6]],
        workers=[_worker(r, r.path.name if many else "", step_length) for r in records],
        plan=rows,
        predicted=_predicted(first, summary),
        charts=_charts(records, summary.seconds),
        gathered=[str(e["text"]) for e in first.events if e.get("event") == "gathered"],
        gathered_cost=_gathered_cost(summary),
        outside=_outside(summary),
        events=[*events[: MOST_EVENTS // 2], *events[MOST_EVENTS // 2 :][-MOST_EVENTS // 2 :]],
        num_events=len(events),
        missing=[*missing, *lacks],
    )


def format_number(value: float | str) -> str:
    """Return a figure with four digits, or all digits before the point.

    >>> format_number(21987.3), format_number(0.123456), format_number("nan")
    ('21,987', '0.1235', 'nan')
    """
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _worker(record: RunRecord, name: str, step_length: float) -> WorkerView:
    summary = summarise(record)
    fractions: list[tuple[str, list[tuple[str, str, float]]]] = []
    for device, time in summary.inside.items():
        waits = sorted(time.wait.items())
        kinds = [
            ("both", "computes", time.compute),
            ("update", "updates", time.update),
            ("once", "computes once for the batch", time.once),
            ("copy", "copies and sums", time.copy),
            *(("wait", f"waits for {other}", seconds) for other, seconds in waits),
            ("idle", "idle", time.idle),
        ]
        length = time.length or 1.0
        shown = [(style, words, seconds / length) for style, words, seconds in kinds if seconds > 0]
        fractions.append((device, shown))
    return WorkerView(
        name=name,
        timeline=timeline(typical_step(record), summary.num_steps, scale_to=step_length),
        fractions=tuple(fractions),
    )


def _predicted(record: RunRecord, summary: Summary) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    predicted = record.plan.predicted
    need: Mapping[str, Any] = {}
    if predicted is not None:
        step = summary.step_seconds
        rows.append(
            ("a step", format_seconds(predicted.step_seconds), format_seconds(step) if step else "")
        )
        for device, seconds in predicted.busy_seconds.items():
            time = summary.inside.get(device)
            measured = "" if time is None else format_seconds(time.compute)
            rows.append((f"{device}: forward and backward", format_seconds(seconds), measured))
        need = predicted.peak_bytes
    needs = [e for e in record.events if e.get("event") == "memory"]
    if needs:
        need = needs[-1].get("bytes", {}) or need
    for device, size in need.items():
        peaks = [
            dict(zip(record.devices, line.get("memory_peak", ()), strict=False)).get(device)
            for line in record.metrics
        ]
        peak = max((p for p in peaks if p is not None), default=None)
        measured = "" if peak is None else format_bytes(peak)
        rows.append((f"{device}: peak memory", format_bytes(size), measured))
    return rows if any(measured for _, _, measured in rows) else []


def _charts(records: Sequence[RunRecord], seconds: float) -> list[Chart]:
    record = records[0]
    events = [
        (e["time"], str(e.get("text", ""))) for e in record.events if e.get("event") in _MARKED
    ]

    def over_time(title: str, name: str) -> list[tuple[str, list[Point]]]:
        return [(title, [(line["time"], line.get(name)) for line in record.metrics])]

    def per_device(name: str) -> list[tuple[str, list[Point]]]:
        return [
            (device, _device_points(records, name, k)) for k, device in enumerate(record.devices)
        ]

    def percent(value: float) -> str:
        return f"{value * 100:.3g} %"

    losses: dict[str, list[Point]] = {}
    for line in record.losses:
        for name, value in line.get("values", {}).items():
            point = line["time"], value if isinstance(value, int | float) else None
            losses.setdefault(str(name), []).append(point)
    rate, busy = "samples_per_second", "Busy with forward and backward passes"
    rates = over_time("all devices", rate)
    charts = [
        chart("Samples per second", rates, seconds=seconds, text=format_number, events=events),
        chart("Shares", per_device("share"), seconds=seconds, text=percent, events=events),
        chart(busy, per_device("busy"), seconds=seconds, text=percent, events=events),
    ]
    for title, series in (
        ("Memory of devices", per_device("memory")),
        ("Memory of the process", over_time("process on the host", "process_bytes")),
    ):
        most = max((v for _, points in series for _, v in points if v is not None), default=0.0)
        unit = 1024.0 ** int(math.log(max(most, 1.0), 1024))
        charts.append(chart(title, series, seconds=seconds, text=format_bytes, unit=unit))
    for name, points in list(losses.items())[:20]:
        series = [(name, points)]
        charts.append(chart(name, series, seconds=seconds, text=format_number, from_zero=False))
    return [each for each in charts if each is not None]


def _device_points(records: Sequence[RunRecord], name: str, number: int) -> list[Point]:
    points: list[Point] = []
    for record in records:
        points = []
        for line in record.metrics:
            values = line.get(name)
            values = values if isinstance(values, list) else []
            points.append((line["time"], values[number] if number < len(values) else None))
        if any(value is not None for _, value in points):
            break
    return points


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
        f"A step begins every {format_seconds(step)}; the devices work on it for "
        f"{format_seconds(inside)}. The rest, {part}, is outside of the step: input data, "
        "callbacks and Python."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    what: str
    first: str
    second: str
    change: str = ""


def changes(first: RunView, second: RunView) -> tuple[list[Change], list[Change]]:
    pairs = zip(_settings(first), _settings(second), strict=True)
    settings = [Change(what=what, first=a, second=b) for (what, a), (_, b) in pairs if a != b]
    a, b = first.summary, second.summary
    figures = [
        _ratio("samples per second", a.samples_per_second, b.samples_per_second, format_number),
        _ratio("a step", a.step_seconds, b.step_seconds, format_seconds),
        _ratio("inside of a recorded step", a.inside_seconds, b.inside_seconds, format_seconds),
    ]
    for name in dict.fromkeys([*a.losses, *b.losses]):
        before, after = a.losses.get(name), b.losses.get(name)
        if isinstance(before, str) or isinstance(after, str):
            figures.append(Change(what=name, first=str(before), second=str(after)))
        else:
            figures.append(_ratio(name, before, after, format_number))
    return settings, figures


def _settings(run: RunView) -> list[tuple[str, str]]:
    record, diagnosis = run.record, run.record.diagnosis
    codes = "not examined"
    if diagnosis is not None and not diagnosis.problem:
        codes = "; ".join(f"{each.code} {each.location}" for each in diagnosis.findings) or "none"
    return [
        ("command", " ".join(record.command)),
        ("devices", ", ".join(record.devices)),
        ("layout", record.plan.layout),
        ("shares at the start", " ".join(f"{share:.3f}" for _, share, _ in run.plan)),
        *((f"version of {name}", record.versions.get(name, "")) for name in _VERSIONS),
        ("gathered", "; ".join(run.gathered) or "nothing"),
        ("findings of the doctor", codes),
    ]


def _ratio(
    what: str, first: float | None, second: float | None, text: Callable[[float], str]
) -> Change:
    return Change(
        what=what,
        first="" if first is None else text(first),
        second="" if second is None else text(second),
        change=f"{second / first:.3g} times" if first and second is not None else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str
    path: str
    last: str
    hue: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    percent: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    x: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    lines: tuple[Series, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...] = ()


def chart(
    title: str,
    series: Sequence[tuple[str, Sequence[Point]]],
    *,
    seconds: float,
    text: Callable[[float], str],
    events: Iterable[tuple[float, str]] = (),
    from_zero: bool = True,
    unit: float = 1.0,
) -> Chart | None:
    shown = [(name, thinned(points)) for name, points in series]
    values = [v for _, points in shown for _, v in points if v is not None]
    if not values:
        return None
    low = min(0.0, *values) if from_zero else min(values)
    y_marks = [unit * mark for mark in ticks(low / unit, max(values) / unit)]
    low, high = min(low, y_marks[0]), max(max(values), y_marks[-1])
    height, end = high - low or 1.0, max(seconds, 1e-9)
    lines: list[Series] = []
    for number, (name, points) in enumerate(shown):
        words: list[str] = []
        last = ""
        is_begun = False
        for at, value in points:
            if value is not None:
                x = round(WIDTH * at / end, 1)
                y = round(HEIGHT * (high - value) / height, 1)
                words.append(f"{'L' if is_begun else 'M'}{x:g} {y:g}")
                last = text(value)
            is_begun = value is not None
        # A line of one point is seen by its round end.
        path = " ".join(words) + (" h0" if len(words) == 1 else "")
        # The golden angle: neighbours differ, however many there are.
        hue = round(215 + number * 137.5) % 360
        lines.append(Series(name=name, path=path, last=last, hue=hue))
    return Chart(
        title=title,
        lines=tuple(lines),
        x_ticks=tuple(Tick(percent=100 * t / end, text=_clock(t)) for t in ticks(0.0, end, 4)),
        y_ticks=tuple(Tick(percent=100 * (high - v) / height, text=text(v)) for v in y_marks),
        marks=tuple(Mark(x=WIDTH * at / end, text=what) for at, what in events if at <= end),
    )


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Return round numbers between two values, at most one more than asked for.

    >>> ticks(0.0, 0.93), ticks(0.0, 37.0)
    ([0.0, 0.5], [0.0, 10.0, 20.0, 30.0])
    """
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)] or [low]


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most `MOST_POINTS` points: neighbours by their mean."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(len(points) / MOST_POINTS)
    kept: list[Point] = []
    for begin in range(0, len(points), size):
        group = points[begin : begin + size]
        known = [value for _, value in group if value is not None]
        kept.append((group[-1][0], mean(known) if known else None))
    return kept


def _clock(seconds: float) -> str:
    """Return a time since the begin.

    >>> _clock(5), _clock(150), _clock(7260)
    ('5 s', '2:30 min', '2:01 h')
    """
    if seconds < 120:
        return f"{seconds:g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes}:{rest:02} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02} h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    x: float
    width: float
    y: int
    style: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    device: str
    bars: tuple[Bar, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    rows: tuple[TimelineRow, ...]
    length: str
    x_ticks: tuple[Tick, ...]
    legend: tuple[tuple[str, str], ...]
    num_steps: int


def timeline(
    step: Mapping[str, Sequence[Activity]], num_steps: int, *, scale_to: float = 0.0
) -> StepTimeline | None:
    """Return the bars of a step, in a box that is as long as this step and at least `scale_to`."""
    if not step:
        return None
    length = max(each.end for row in step.values() for each in row)
    whole = max(length, scale_to)
    rows = tuple(_row(device, row, whole) for device, row in sorted(step.items(), key=_order))
    styles = {bar.style for row in rows for bar in row.bars}
    return StepTimeline(
        rows=rows,
        length=format_seconds(length),
        x_ticks=tuple(
            Tick(percent=100 * t / (whole or 1.0), text=format_seconds(t) if t else "0")
            for t in ticks(0.0, whole, 4)
        ),
        legend=tuple(entry for entry in _LEGEND if entry[0] in styles),
        num_steps=num_steps,
    )


def _order(item: tuple[str, object]) -> tuple[str, int]:
    kind, _, number = item[0].rpartition(":")
    return kind, int(number) if number.isdecimal() else 0


def _row(device: str, row: Sequence[Activity], length: float) -> TimelineRow:
    scale = WIDTH / (length or 1.0)
    bars: list[Bar] = []
    seconds: dict[str, float] = {}
    for each in row:
        words = {WAIT: f"waits for {each.other}", COPY: f"copy from {each.other}"}.get(
            each.kind, _NAMES.get(each.kind, each.kind)
        )
        seconds[words] = seconds.get(words, 0.0) + each.seconds
        stage = "" if each.stage is None else f", stage {each.stage}"
        part = "" if each.micro_batch is None else f", micro-batch {each.micro_batch}"
        at = f"{format_seconds(each.begin)} to {format_seconds(each.end)}"
        bars.append(
            Bar(
                x=round(scale * each.begin, 1),
                width=round(max(scale * each.seconds, 0.5), 1),
                y=_TOPS.get(each.kind, 0),
                style=_CLASSES.get(each.kind, each.kind),
                text=f"{words}{stage}{part}: {format_seconds(each.seconds)} ({at})",
            )
        )
    parts = ", ".join(f"{words} {format_seconds(time)}" for words, time in seconds.items())
    return TimelineRow(device=device, bars=tuple(bars), text=f"{device}: {parts}")
