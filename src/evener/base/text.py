"""Bytes and seconds to and from text, and text without the codes that a terminal obeys."""

from __future__ import annotations

import re

_BYTE_UNITS = {
    **{"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
}
# The codes of ASCII but tab and line feed, and those that Latin-1 adds.
_CONTROLS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
_CONTROLS_BUT_COLOURS = rf"(?!\x1b\[[\d;:]*m){_CONTROLS}"
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text such as ``"10GiB"`` or ``"512 MB"`` names."""
    match = _BYTES.fullmatch(text)
    unit = (match[2] or "b").lower() if match else ""
    if match is None or unit not in _BYTE_UNITS:
        raise ValueError(f"{text!r} is not a size; write for example 10GiB or 512MiB")
    return round(float(match[1]) * _BYTE_UNITS[unit])


def format_bytes(num_bytes: float) -> str:
    """Return bytes in the largest binary unit that keeps the number at 1 or more.

    >>> format_bytes(1610612736)
    '1.5 GiB'
    """
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """Return a duration in the unit that suits its size.

    >>> format_seconds(0.0123), format_seconds(75)
    ('12.3 ms', '1 min 15 s')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def printable(text: str, *, keeps_colours: bool = False) -> str:
    r"""Return a text without the codes that move a cursor, set a title or ring a bell.

    >>> printable("\x1b]0;title\x07 \x1b[31mred\x9b2J")
    ']0;title [31mred2J'
    >>> printable("\x1b[2J\x1b[31mred\r", keeps_colours=True)
    '[2J\x1b[31mred'
    """
    return re.sub(_CONTROLS_BUT_COLOURS if keeps_colours else _CONTROLS, "", text)
