"""Timeline of a recorded step: a row for each device, with bars in the width of a box of 1000."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evener.recording.activities import COPY, IDLE, WAIT, Activity, DeviceTime
from evener.units import format_seconds

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
    """Bar of a timeline.

    Attributes:
        x: Begin in the box.
        width: Width in the box.
        y: Top in a row of height 20: bars of work are tall, and those of waiting are flat, so that
            they differ without colors.
        style: Class of the bar.
        text: Description, shown beside the pointer.
    """

    x: float
    width: float
    y: int
    style: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Row of a device.

    Attributes:
        device: Name of the device.
        bars: Bars in order.
        text: Summary of the row, for those who do not see it.
    """

    device: str
    bars: tuple[Bar, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Timeline of a step.

    Attributes:
        rows: Rows, one for each device.
        length: Length of the step, as text.
        legend: Class and meaning of the kinds that appear.
        num_steps: Number of steps that were recorded.
    """

    rows: tuple[Row, ...]
    length: str
    legend: tuple[tuple[str, str], ...]
    num_steps: int


def timeline(found: Mapping[str, Sequence[Activity]], num_steps: int) -> Timeline | None:
    """Return the timeline of a step; None if there is none.

    Args:
        found: Activities of each device.
        num_steps: Number of steps that were recorded.
    """
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
