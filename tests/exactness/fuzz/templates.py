"""Expressions with places for values.

``{a:f1+}`` stands for a value: a name for further use, the kind (``f`` float, ``i`` integer, ``g``
integer that may be large, ``b`` bool, ``*`` any) and the rank: exactly (``2``), at least (``1+``),
or any. ``{a}`` is the same value again, ``{@a}`` one of its axes, ``{=1|2}`` one of several texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from exactness.fuzz.operations import GROUPS


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot for a value in an expression.

    Attributes:
        name: Letter by which the template mentions the same value again.
        kind: ``f``, ``i``, ``g``, ``b``, or ``*``.
        least_rank: The least rank.
        most_rank: The largest rank.
    """

    name: str
    kind: str
    least_rank: int
    most_rank: int


_SLOT = re.compile(r"\{(\w):([figb*])(\d?)(\+?)\}")


def slots(template: str) -> list[Slot]:
    found = []
    for name, kind, rank, more in _SLOT.findall(template):
        least = int(rank or 0)
        most = least if rank and not more else 4
        found.append(Slot(name, kind, least, most))
    return found


def filled(template: str, values: dict[str, str]) -> str:
    text = _SLOT.sub(lambda match: values[match[1]], template)
    return re.sub(r"\{(\w)\}", lambda match: values[match[1]], text)


def groups() -> dict[tuple[str, ...], float]:
    """Return the templates of each group, with its weight."""
    return {
        tuple(text.strip().replace("\n    ", " ").splitlines()): weight
        for text, weight in GROUPS.items()
    }
