"""Quantities with units, such as ``16 GB/s``, ``5 us``, ``125 TFLOP/s``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from evener.units import parse_bytes

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([^\W\d]\S*)")

_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BYTE_RATES = {
    **{f"{prefix.upper()}B/s": scale for prefix, scale in _PREFIXES.items()},
    **{f"{prefix}iB/s": 1024.0**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}bit/s": scale / 8 for prefix, scale in _PREFIXES.items()},
}
_FLOP_RATES = {f"{prefix}FLOP/s": scale for prefix, scale in _PREFIXES.items()}
# Units per second: dividing by a power of ten is exact, multiplying by its inverse is not.
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9}

_LEAST_WITHOUT_UNIT = 2**20
"""Least bytes that a number without a unit may mean."""


def memory_size(text: str) -> int:
    """Return bytes, at least 1.

    Raises:
        ValueError: If the text is not a size above 0, or is so small a number without a unit that
            one was forgotten.

    >>> memory_size("24 GiB")
    25769803776
    """
    try:
        num_bytes = parse_bytes(text)
    except OverflowError:
        raise ValueError("it is more than can be counted") from None
    if num_bytes < 1:
        raise ValueError("it must be above 0")
    if num_bytes < _LEAST_WITHOUT_UNIT and text.strip()[-1].isdigit():
        raise ValueError(
            f"without a unit it is {num_bytes} bytes; write for example {text.strip()} GiB"
        )
    return num_bytes


def byte_rate(text: str) -> float:
    """Return bytes per second, above 0.

    Raises:
        ValueError: If the text is not of the form ``16 GB/s`` or ``10 Gbit/s``.

    >>> byte_rate("16 GB/s"), byte_rate("10 Gbit/s")
    (16000000000.0, 1250000000.0)
    """
    return _rate(text, _BYTE_RATES, "16 GB/s or 10 Gbit/s")


def flop_rate(text: str) -> float:
    """Return floating-point operations per second, above 0.

    Raises:
        ValueError: If the text is not of the form ``125 TFLOP/s``.

    >>> flop_rate("125 TFLOP/s")
    125000000000000.0
    """
    return _rate(text, _FLOP_RATES, "125 TFLOP/s")


def duration(text: str) -> float:
    """Return seconds, 0 or more.

    Raises:
        ValueError: If the text is not of the form ``5 us``.

    >>> duration("5 us"), duration("0 s")
    (5e-06, 0.0)
    """
    number, per_second = _parse(text, _PER_SECOND, "5 us or 1.5 ms")
    return number / per_second


def _rate(text: str, scales: Mapping[str, float], example: str) -> float:
    number, scale = _parse(text, scales, example)
    if not 0 < number * scale < math.inf:
        raise ValueError("it must be above 0, and finite")
    return number * scale


def _parse(text: str, units: Mapping[str, float], example: str) -> tuple[float, float]:
    """Return the number, and the value of its unit."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a number of 0 or more and a unit are needed, such as {example}")
    number, unit = match.groups()
    if unit not in units:
        raise ValueError(
            f"{unit!r} is not one of its units: {', '.join(units)}; write for example {example}"
        )
    value = float(number)
    if not math.isfinite(value):
        raise ValueError("it is more than can be counted")
    return value, units[unit]
