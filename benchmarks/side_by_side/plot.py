"""Lines over logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_WIDTH, _HEIGHT = 360, 260
_LEFT, _TOP, _BOTTOM = 52, 34, 44
_COLORS = ("#1f6fb2", "#c0561a", "#2f8f4e", "#7a4fb0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One part of a plot.

    Attributes:
        title: Title above the panel.
        across: Label of the horizontal axis.
        lines: Points (across, seconds) of each line by name, all above 0, by rising first numbers.
    """

    title: str
    across: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def svg_of(panels: Sequence[Panel], *, up: str) -> str:
    """Return a plot: the panels side by side, with one scale upwards.

    Args:
        panels: Panels from left to right, one or more.
        up: Label of the vertical axis.
    """
    values = [y for panel in panels for line in panel.lines.values() for _, y in line]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    width = len(panels) * _WIDTH + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" '
        f'viewBox="0 0 {width} {_HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({number * _WIDTH} 0)">')
        parts += _panel(panel, low, max(high, low + 1), up=up if number == 0 else "")
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def write_svg(path: Path, panels: Sequence[Panel], *, up: str) -> None:
    """Write a plot to a file; see `svg_of`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg_of(panels, up=up), encoding="utf-8")


def _panel(panel: Panel, low: int, high: int, *, up: str) -> Iterator[str]:
    across = sorted({x for line in panel.lines.values() for x, _ in line})
    right, bottom = _WIDTH - 12, _HEIGHT - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        over = math.log(x / across[0]) / math.log(across[-1] / across[0])
        above = (math.log10(y) - low) / (high - low)
        return _LEFT + over * (right - _LEFT), bottom - above * (bottom - _TOP)

    yield _text(panel.title, (_LEFT + right) / 2, 18, size=13)
    yield _text(panel.across, (_LEFT + right) / 2, _HEIGHT - 8)
    for power in range(low, high + 1):
        _, y = at(across[0], 10.0**power)
        yield f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#ddd"/>'
        yield _text(f"{10.0**power:g} s", _LEFT - 6, y + 4, anchor="end")
    for x in across:
        place, _ = at(x, 10.0**low)
        yield f'<path d="M{place:.1f} {bottom}v4" stroke="#888"/>'
        yield _text(f"{x:g}", place, bottom + 16)
    if up:
        yield _text(up, _LEFT - 40, _TOP - 8, anchor="start")
    for number, (name, line) in enumerate(panel.lines.items()):
        color = _COLORS[number % len(_COLORS)]
        points = [at(*point) for point in line]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="1.6"/>'
        for x, y in points:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{color}"/>'
        # Times grow to the right: there is room below them.
        height = bottom - 10 - 14 * (len(panel.lines) - 1 - number)
        yield _text(name, right - 8, height, anchor="end", color=color)


def _text(
    text: str,
    x: float,
    y: float,
    *,
    anchor: str = "middle",
    size: int = 11,
    color: str = "#333",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{color}">{text}</text>'
    )
