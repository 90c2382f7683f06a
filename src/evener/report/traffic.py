"""Devices and what goes between them, drawn: as SVG, or as text for Graphviz.

a few devices       one box each, in a ring when there are more than two
arrows              one per direction, as thick as the traffic, with the bytes
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jinja2

from evener.placement.parts import KINDS, Traffic
from evener.placement.record import Audit
from evener.units import format_bytes

_BOX = (184, 112)
_MARGIN = 24
# How far the two arrows of a pair of devices bend apart.
_BEND = 36
_THICKEST = 7.0
# Length and half the width of an arrow's head.
_HEAD = (14.0, 7.0)
_TEMPLATES = {".svg": "traffic.svg.jinja", ".dot": "traffic.dot.jinja"}

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A device in the picture.

    Args:
        name: The device.
        work: Kind of work and number of operations.
        x: The middle, in pixels.
        y: The middle, in pixels.
    """

    name: str
    work: tuple[tuple[str, int], ...]
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """The traffic from one device to another.

    Args:
        source: The device it comes from.
        target: The device it goes to.
        label: The bytes.
        number: The number of copies, in words.
        path: The curve, as SVG writes it.
        head: The corners of its head, as SVG writes them.
        x: Where the label stands.
        y: Where the label stands.
        width: Of the line, in pixels.
    """

    source: str
    target: str
    label: str
    number: str
    path: str
    head: str
    x: float
    y: float
    width: float


def draw(audit: Audit, suffix: str) -> str:
    """Return the picture of an audit.

    Args:
        audit: What was found.
        suffix: ``".svg"``, or ``".dot"`` for Graphviz.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("evener.report"),
        autoescape=suffix == ".svg",
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    boxes = _boxes(audit)
    width = max((box.x for box in boxes), default=0) + _BOX[0] / 2 + _MARGIN
    height = max((box.y for box in boxes), default=0) + _BOX[1] / 2 + _MARGIN
    return environment.get_template(_TEMPLATES[suffix]).render(
        # A script may be called anything; XML has no signs for control characters.
        step="".join(sign if sign.isprintable() else "?" for sign in audit.step),
        total=format_bytes(audit.moved_bytes),
        boxes=boxes,
        arrows=_arrows(audit, {box.name: box for box in boxes}),
        width=max(width, 420),
        height=height,
        box=_BOX,
    )


def _boxes(audit: Audit) -> list[Box]:
    ends = {end for way in audit.traffic for end in (way.source, way.target)}
    names = sorted({total.device for total in audit.totals} | ends)
    return [
        Box(name=name, work=_work(audit, name), x=x, y=y)
        for name, (x, y) in zip(names, _places(len(names)), strict=True)
    ]


def _work(audit: Audit, device: str) -> tuple[tuple[str, int], ...]:
    counted = {total.kind: total.num_operations for total in audit.totals if total.device == device}
    return tuple((kind, counted[kind]) for kind in KINDS if kind in counted)


def _places(number: int) -> list[Point]:
    """Return the middles of the boxes: in a row for two, else in a ring."""
    left, top = _BOX[0] / 2 + _MARGIN, _BOX[1] / 2 + _MARGIN + 48
    if number <= 2:
        return [(left + index * (_BOX[0] + 210), top) for index in range(number)]
    radius = max(210.0, number * (_BOX[0] + 140) / (2 * math.pi))
    angles = [2 * math.pi * index / number - math.pi / 2 for index in range(number)]
    ring = [(1.25 * radius * math.cos(one), radius * math.sin(one)) for one in angles]
    lowest_x, lowest_y = min(x for x, _ in ring), min(y for _, y in ring)
    return [(x - lowest_x + left, y - lowest_y + top) for x, y in ring]


def _arrows(audit: Audit, boxes: dict[str, Box]) -> list[Arrow]:
    most = max((way.num_bytes for way in audit.traffic), default=0)
    return [_arrow(way, boxes[way.source], boxes[way.target], most) for way in audit.traffic]


def _arrow(way: Traffic, source: Box, target: Box, most: int) -> Arrow:
    across, down = target.x - source.x, target.y - source.y
    length = math.hypot(across, down)
    # To the right of the way, so that the way back bends to its other side.
    side = (-down / length * _BEND, across / length * _BEND)
    middle = ((source.x + target.x) / 2 + side[0], (source.y + target.y) / 2 + side[1])
    begin, tip = _edge(source, middle), _edge(target, middle)
    bent = (middle[0] + side[0] * 0.6, middle[1] + side[1] * 0.6)
    head, end = _head(bent, tip)
    # The middle of a quadratic curve.
    label = tuple((b + 2 * m + e) / 4 for b, m, e in zip(begin, bent, end, strict=True))
    copies = "copy" if way.num_copies == 1 else "copies"
    unknown = f", {way.num_unknown} unknown" if way.num_unknown else ""
    return Arrow(
        source=way.source,
        target=way.target,
        label=format_bytes(way.num_bytes),
        number=f"{way.num_copies} {copies}{unknown}",
        path="M {:.1f} {:.1f} Q {:.1f} {:.1f} {:.1f} {:.1f}".format(*begin, *bent, *end),
        head=head,
        x=label[0],
        y=label[1],
        width=1.2 + (_THICKEST - 1.2) * (way.num_bytes / most if most else 0),
    )


def _head(before: Point, tip: Point) -> tuple[str, Point]:
    """Return the head of an arrow, and where its line ends.

    Drawn here: not every program that shows SVG turns its markers.
    """
    across, down = tip[0] - before[0], tip[1] - before[1]
    length = math.hypot(across, down)
    along = (across / length, down / length)
    back = (tip[0] - along[0] * _HEAD[0], tip[1] - along[1] * _HEAD[0])
    aside = (-along[1] * _HEAD[1], along[0] * _HEAD[1])
    sides = [(back[0] + one * aside[0], back[1] + one * aside[1]) for one in (1, -1)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in (tip, *sides)), back


def _edge(box: Box, towards: Point) -> Point:
    """Return where the line from a box's middle to a point leaves the box."""
    across, down = towards[0] - box.x, towards[1] - box.y
    half = (_BOX[0] / 2 + 6, _BOX[1] / 2 + 6)
    scale = min(
        half[0] / abs(across) if across else math.inf, half[1] / abs(down) if down else math.inf
    )
    return box.x + across * scale, box.y + down * scale
