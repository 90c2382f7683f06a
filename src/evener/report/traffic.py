"""Draws the devices of an audit and the copies between them, as SVG or as text for Graphviz."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from evener.auditing.records import KINDS, Audit, Traffic
from evener.base.text import format_bytes

# The picture of an audit: a box for each device, and an arrow for the copies of each direction.
#
# boxes     a row of two, else a ring
# arrows    one per direction, as thick as the traffic, labelled with the bytes

BOX = (184, 112)
"""Width and height of a box, in pixels."""

_MARGIN = 24
# Distance by which the two arrows of a pair of devices are bent away from each other.
_BEND = 36
_THICKEST = 7.0
# Length and half the width of an arrow's head.
_HEAD = (14.0, 7.0)
_LEAST_WIDTH = 420.0

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A device in the picture."""

    name: str  # The device
    work: tuple[tuple[str, int], ...]  # Kind of work and number of operations
    x: float  # The center, in pixels
    y: float  # The center, in pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """The traffic from one device to another."""

    source: str  # The device that sends
    target: str  # The device that receives
    label: str  # The bytes, as text
    number: str  # The number of copies, as text
    path: str  # The curve, in SVG syntax
    head: str  # The corners of its head, in SVG syntax
    x: float  # The center of the label, in pixels
    y: float  # The center of the label, in pixels
    width: float  # Width of the line, in pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The picture of an audit."""

    step: str  # The name of the step, without control characters, which XML does not allow
    total: str  # The bytes of all copies, as text
    boxes: tuple[Box, ...]  # The devices
    arrows: tuple[Arrow, ...]  # The traffic between them
    width: float  # Width of the picture, in pixels
    height: float  # Height of the picture, in pixels


def picture_of(audit: Audit) -> Picture:
    """Return the picture of an audit."""
    boxes = _boxes(audit)
    width = max((box.x for box in boxes), default=0) + BOX[0] / 2 + _MARGIN
    height = max((box.y for box in boxes), default=0) + BOX[1] / 2 + _MARGIN
    return Picture(
        step="".join(sign if sign.isprintable() else "?" for sign in audit.step),
        total=format_bytes(audit.moved_bytes),
        boxes=tuple(boxes),
        arrows=tuple(_arrows(audit, {box.name: box for box in boxes})),
        width=max(width, _LEAST_WIDTH),
        height=height,
    )


def _boxes(audit: Audit) -> list[Box]:
    ends = {end for traffic in audit.traffic for end in (traffic.source, traffic.target)}
    names = sorted({total.device for total in audit.totals} | ends)
    return [
        Box(name=name, work=_work(audit, name), x=x, y=y)
        for name, (x, y) in zip(names, _centers(len(names)), strict=True)
    ]


def _work(audit: Audit, device: str) -> tuple[tuple[str, int], ...]:
    counted = {total.kind: total.num_operations for total in audit.totals if total.device == device}
    return tuple((kind, counted[kind]) for kind in KINDS if kind in counted)


def _centers(number: int) -> list[Point]:
    """Return the centers of the boxes: in a row for two, else in a ring."""
    left, top = BOX[0] / 2 + _MARGIN, BOX[1] / 2 + _MARGIN + 48
    if number <= 2:
        return [(left + index * (BOX[0] + 210), top) for index in range(number)]
    radius = max(210.0, number * (BOX[0] + 140) / (2 * math.pi))
    angles = [2 * math.pi * index / number - math.pi / 2 for index in range(number)]
    ring = [(1.25 * radius * math.cos(angle), radius * math.sin(angle)) for angle in angles]
    lowest_x, lowest_y = min(x for x, _ in ring), min(y for _, y in ring)
    return [(x - lowest_x + left, y - lowest_y + top) for x, y in ring]


def _arrows(audit: Audit, boxes: dict[str, Box]) -> list[Arrow]:
    most = max((traffic.num_bytes for traffic in audit.traffic), default=0)
    return [
        _arrow(traffic, boxes[traffic.source], boxes[traffic.target], most)
        for traffic in audit.traffic
    ]


def _arrow(traffic: Traffic, source: Box, target: Box, most: int) -> Arrow:
    across, down = target.x - source.x, target.y - source.y
    length = math.hypot(across, down)
    # To the right, so that the arrow of the other direction is bent to the other side.
    side = (-down / length * _BEND, across / length * _BEND)
    middle = ((source.x + target.x) / 2 + side[0], (source.y + target.y) / 2 + side[1])
    begin, tip = _edge(source, middle), _edge(target, middle)
    bent = (middle[0] + side[0] * 0.6, middle[1] + side[1] * 0.6)
    head, end = _head(bent, tip)
    # The midpoint of a quadratic curve.
    label = tuple((b + 2 * m + e) / 4 for b, m, e in zip(begin, bent, end, strict=True))
    copies = "copy" if traffic.num_copies == 1 else "copies"
    unknown = f", {traffic.num_unknown} unknown" if traffic.num_unknown else ""
    return Arrow(
        source=traffic.source,
        target=traffic.target,
        label=format_bytes(traffic.num_bytes),
        number=f"{traffic.num_copies} {copies}{unknown}",
        path="M {:.1f} {:.1f} Q {:.1f} {:.1f} {:.1f} {:.1f}".format(*begin, *bent, *end),
        head=head,
        x=label[0],
        y=label[1],
        width=1.2 + (_THICKEST - 1.2) * (traffic.num_bytes / most if most else 0),
    )


def _head(before: Point, tip: Point) -> tuple[str, Point]:
    """Return the head of an arrow, and the end point of its line.

    Not every SVG viewer rotates markers, so the head is a polygon of its own.
    """
    across, down = tip[0] - before[0], tip[1] - before[1]
    length = math.hypot(across, down)
    along = (across / length, down / length)
    back = (tip[0] - along[0] * _HEAD[0], tip[1] - along[1] * _HEAD[0])
    aside = (-along[1] * _HEAD[1], along[0] * _HEAD[1])
    sides = [(back[0] + sign * aside[0], back[1] + sign * aside[1]) for sign in (1, -1)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in (tip, *sides)), back


def _edge(box: Box, towards: Point) -> Point:
    """Return the point where the line from the center of a box to a point leaves the box."""
    across, down = towards[0] - box.x, towards[1] - box.y
    half = (BOX[0] / 2 + 6, BOX[1] / 2 + 6)
    scale = min(
        half[0] / abs(across) if across else math.inf, half[1] / abs(down) if down else math.inf
    )
    return box.x + across * scale, box.y + down * scale


# Draws the devices of an audit and the copies between them, as SVG or as text for Graphviz.


def draw(audit: Audit, suffix: str) -> str:
    """Return the picture of an audit as text."""
    lines = {".svg": _svg, ".dot": _dot}[suffix]
    return "\n".join(lines(picture_of(audit)))


def _dot(picture: Picture) -> Iterator[str]:
    title = f"{picture.step}: one step moves {picture.total} between devices"
    yield f"digraph {_quoted(picture.step)} {{"
    yield f"  label={_quoted(title)};"
    yield "  rankdir=LR;"
    yield '  node [shape=box, style="rounded,filled", fillcolor="#eff6ff", color="#1d4ed8",'
    yield '    fontname="Helvetica"];'
    yield '  edge [color="#d97706", fontname="Helvetica", fontsize=11];'
    for box in picture.boxes:
        label = "\n".join([box.name, *(f"{kind} {number}" for kind, number in box.work)])
        yield f"  {_quoted(box.name)} [label={_quoted(label)}];"
    for arrow in picture.arrows:
        label = _quoted(f"{arrow.label}\n{arrow.number}")
        ends = f"{_quoted(arrow.source)} -> {_quoted(arrow.target)}"
        yield f"  {ends} [label={label}, penwidth={arrow.width:.1f}];"
    yield "}"


def _quoted(text: str) -> str:
    """Return a text as a quoted string of Graphviz, which has the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _svg(picture: Picture) -> Iterator[str]:
    width, height = round(picture.width), round(picture.height)
    step = escape(picture.step)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">'
    )
    yield f"  <title>{step}</title>"
    yield '  <rect width="100%" height="100%" fill="#ffffff"/>'
    yield (f'  <text x="24" y="30" font-size="15" font-weight="bold" fill="#1f2937">{step}</text>')
    yield (
        '  <text x="24" y="50" font-size="12" fill="#6b7280">'
        f"one step moves {escape(picture.total)} between devices</text>"
    )
    for arrow in picture.arrows:
        yield (
            f'  <path d="{arrow.path}" fill="none" stroke="#d97706" stroke-opacity="0.75" '
            f'stroke-width="{arrow.width:.1f}"/>'
        )
        yield f'  <polygon points="{arrow.head}" fill="#b45309"/>'
    for box in picture.boxes:
        yield from _svg_box(box)
    for arrow in picture.arrows:
        yield from _svg_label(arrow)
    yield "</svg>"


def _svg_box(box: Box) -> Iterator[str]:
    left, top = box.x - BOX[0] / 2, box.y - BOX[1] / 2
    yield "  <g>"
    yield (
        f'    <rect x="{left:.1f}" y="{top:.1f}" width="{BOX[0]}" height="{BOX[1]}" rx="10" '
        'fill="#eff6ff" stroke="#1d4ed8" stroke-width="1.5"/>'
    )
    yield (
        f'    <text x="{box.x:.1f}" y="{top + 24:.1f}" text-anchor="middle" font-size="15" '
        f'font-weight="bold" fill="#1e3a8a">{escape(box.name)}</text>'
    )
    for index, (kind, number) in enumerate(box.work):
        y = f"{top + 46 + 17 * index:.1f}"
        yield (
            f'    <text x="{left + 18:.1f}" y="{y}" font-size="12" fill="#374151">'
            f"{escape(kind)}</text>"
        )
        yield (
            f'    <text x="{left + BOX[0] - 18:.1f}" y="{y}" text-anchor="end" font-size="12" '
            f'fill="#374151">{number}</text>'
        )
    yield "  </g>"


def _svg_label(arrow: Arrow) -> Iterator[str]:
    yield '  <g text-anchor="middle">'
    yield (
        f'    <rect x="{arrow.x - 42:.1f}" y="{arrow.y - 17:.1f}" width="84" height="34" rx="6" '
        'fill="#ffffff" fill-opacity="0.92"/>'
    )
    yield (
        f'    <text x="{arrow.x:.1f}" y="{arrow.y - 2:.1f}" font-size="13" font-weight="bold" '
        f'fill="#92400e">{escape(arrow.label)}</text>'
    )
    yield (
        f'    <text x="{arrow.x:.1f}" y="{arrow.y + 12:.1f}" font-size="10" fill="#92400e">'
        f"{escape(arrow.number)}</text>"
    )
    yield "  </g>"
