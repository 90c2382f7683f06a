"""Draws the devices of an audit and the copies between them, as SVG or as text for Graphviz."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape

from evener.auditing.result import Audit
from evener.report.traffic_layout import BOX, Arrow, Box, Picture, picture_of


def draw(audit: Audit, suffix: str) -> str:
    """Return the picture of an audit as text.

    Args:
        audit: The audit.
        suffix: ``".svg"``, or ``".dot"`` for Graphviz.
    """
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
