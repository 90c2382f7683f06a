"""Charts over time and timelines of a step, in the coordinates of boxes of 1000 units."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from evener.base.text import format_seconds
from evener.recording.reading import COPY, IDLE, WAIT, Activity, DeviceTime

# Charts over time: series in the coordinates of a box of 1000 x 200, with ticks of round numbers.
#
# The labels are text of the page and not of the picture, which is stretched to the width of the
# screen: they stay readable on a phone.

WIDTH, HEIGHT = 1000, 200
MOST_POINTS = 240
"""Largest number of points of a line; neighbours are averaged."""

Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Line of a chart."""

    name: str  # Name of the series
    path: str  # Path in the coordinates of the box, as in SVG; it has gaps where nothing is known
    last: str  # Last value, as text
    hue: int  # Angle of the color, in degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Label of an axis."""

    percent: float  # Position, in percent from the left or from the top
    text: str  # Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Event in a chart."""

    x: float  # Position in the box
    text: str  # Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Chart of the page."""

    title: str  # Heading
    lines: tuple[Line, ...]  # Lines
    x_ticks: tuple[Tick, ...]  # Labels of the time
    y_ticks: tuple[Tick, ...]  # Labels of the values
    marks: tuple[Mark, ...] = ()  # Events


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
    """Return a chart; None if no series has a value."""
    shown = [(name, thinned(points)) for name, points in series]
    values = [v for _, points in shown for _, v in points if v is not None]
    if not values:
        return None
    low = min(0.0, *values) if from_zero else min(values)
    marks = [unit * mark for mark in ticks(low / unit, max(values) / unit)]
    low, high = min(low, marks[0]), max(max(values), marks[-1])
    end = max(seconds, 1e-9)

    def line(number: int, name: str, points: Sequence[Point]) -> Line:
        last = next((v for _, v in reversed(points) if v is not None), None)
        return Line(
            name=name,
            path=_path(points, end, low, high),
            last="" if last is None else text(last),
            # The golden angle: neighbours differ, however many there are.
            hue=round(215 + number * 137.5) % 360,
        )

    return Chart(
        title=title,
        lines=tuple(line(k, name, points) for k, (name, points) in enumerate(shown)),
        x_ticks=tuple(Tick(percent=100 * t / end, text=_clock(t)) for t in ticks(0.0, end, 4)),
        y_ticks=tuple(
            Tick(percent=100 * (high - v) / (high - low or 1.0), text=text(v)) for v in marks
        ),
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
    found = [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]
    return found or [low]


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most `MOST_POINTS` points: neighbours by their mean."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(len(points) / MOST_POINTS)
    groups = [points[k : k + size] for k in range(0, len(points), size)]
    return [(group[-1][0], _mean(v for _, v in group)) for group in groups]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _path(points: Sequence[Point], end: float, low: float, high: float) -> str:
    words: list[str] = []
    is_begun = False
    for at, value in points:
        if value is None:
            is_begun = False
            continue
        x = round(WIDTH * at / end, 1)
        y = round(HEIGHT * (high - value) / ((high - low) or 1.0), 1)
        words.append(f"{'L' if is_begun else 'M'}{x:g} {y:g}")
        is_begun = True
    # A line of one point is seen by its round end.
    return " ".join(words) + (" h0" if len(words) == 1 else "")


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


# Timeline of a recorded step: a row for each device, with bars in the width of a box of 1000.

_WIDTH = 1000
_NAMES = {
    "forward + backward": "forward and backward",
    "weights": "gradients of weights",
    "update": "update of variables",
    "once": "computed once for the batch",
    "step": "whole step",
    IDLE: "idle",
}
LEGEND = (
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

_TOPS = {COPY: 4, WAIT: 7, IDLE: 9}
_CLASSES = {"forward + backward": "both", "step": "both", "weights": "backward"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Bar of a timeline."""

    x: float  # Begin in the box
    width: float  # Width in the box
    # Top in a row of height 20: bars of work are tall, and those of waiting are flat, so that they
    # differ without colors
    y: int
    style: str  # Class of the bar
    text: str  # Description, shown beside the pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Row of a device."""

    device: str  # Name of the device
    bars: tuple[Bar, ...]  # Bars in order
    text: str  # Summary of the row, for those who do not see it


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Timeline of a step."""

    rows: tuple[Row, ...]  # Rows, one for each device
    length: str  # Length of the step, as text
    legend: tuple[tuple[str, str], ...]  # Class and meaning of the kinds that appear
    num_steps: int  # Number of steps that were recorded


def timeline(found: Mapping[str, Sequence[Activity]], num_steps: int) -> Timeline | None:
    """Return the timeline of a step; None if there is none."""
    if not found:
        return None
    length = max(each.end for row in found.values() for each in row)
    rows = tuple(_row(device, row, length) for device, row in sorted(found.items(), key=_order))
    styles = {bar.style for row in rows for bar in row.bars}
    return Timeline(
        rows=rows,
        length=format_seconds(length),
        legend=tuple(entry for entry in LEGEND if entry[0] in styles),
        num_steps=num_steps,
    )


def fractions(time: DeviceTime) -> list[tuple[str, str, float]]:
    """Return the class, the words and the fraction of each kind of time of a device."""
    length = time.length or 1.0
    kinds = [
        ("both", "computes", time.compute),
        ("update", "updates", time.update),
        ("once", "computes once for the batch", time.once),
        ("copy", "copies and sums", time.copy),
        *(("wait", f"waits for {other}", seconds) for other, seconds in sorted(time.wait.items())),
        ("idle", "idle", time.idle),
    ]
    return [(style, words, seconds / length) for style, words, seconds in kinds if seconds > 0]


def _order(item: tuple[str, object]) -> tuple[str, int]:
    """Return the key of a device: gpu:10 comes after gpu:2."""
    kind, _, number = item[0].rpartition(":")
    return kind, int(number) if number.isdecimal() else 0


def _row(device: str, row: Sequence[Activity], length: float) -> Row:
    bars = tuple(
        Bar(
            x=round(_WIDTH * each.begin / (length or 1.0), 1),
            width=round(max(_WIDTH * each.seconds / (length or 1.0), 0.5), 1),
            y=_TOPS.get(each.kind, 0),
            style=_CLASSES.get(each.kind, each.kind),
            text=_described(each),
        )
        for each in row
    )
    seconds: dict[str, float] = {}
    for each in row:
        words = _words(each)
        seconds[words] = seconds.get(words, 0.0) + each.seconds
    parts = ", ".join(f"{words} {format_seconds(time)}" for words, time in seconds.items())
    return Row(device=device, bars=bars, text=f"{device}: {parts}")


def _words(each: Activity) -> str:
    if each.kind == WAIT:
        return f"waits for {each.other}"
    if each.kind == COPY:
        return f"copy from {each.other}"
    return _NAMES.get(each.kind, each.kind)


def _described(each: Activity) -> str:
    words = [_words(each)]
    if each.stage is not None:
        words.append(f"stage {each.stage}")
    if each.micro_batch is not None:
        words.append(f"micro-batch {each.micro_batch}")
    at = f"{format_seconds(each.begin)} to {format_seconds(each.end)}"
    return f"{', '.join(words)}: {format_seconds(each.seconds)} ({at})"
