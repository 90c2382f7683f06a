"""Charts over time: series in the coordinates of a box of 1000 x 200, with ticks of round numbers.

The labels are text of the page and not of the picture, which is stretched to the width of the
screen: they stay readable on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

WIDTH, HEIGHT = 1000, 200
MOST_POINTS = 240
"""Largest number of points of a line; neighbours are averaged."""

Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Line of a chart.

    Attributes:
        name: Name of the series.
        path: Path in the coordinates of the box, as in SVG; it has gaps where nothing is known.
        last: Last value, as text.
        hue: Angle of the color, in degrees.
    """

    name: str
    path: str
    last: str
    hue: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Label of an axis.

    Attributes:
        percent: Position, in percent from the left or from the top.
        text: Label.
    """

    percent: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Event in a chart.

    Attributes:
        x: Position in the box.
        text: Description.
    """

    x: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Chart of the page.

    Attributes:
        title: Heading.
        lines: Lines.
        x_ticks: Labels of the time.
        y_ticks: Labels of the values.
        marks: Events.
    """

    title: str
    lines: tuple[Line, ...]
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
    """Return a chart; None if no series has a value.

    Args:
        title: Heading.
        series: Name and points of each line: seconds and values, None where nothing is known.
        seconds: End of the time axis.
        text: Function that formats a value.
        events: Seconds and descriptions of events.
        from_zero: Whether the values begin at 0.
        unit: Unit in which the ticks are round.
    """
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
