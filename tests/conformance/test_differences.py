"""The differences are written down for people, and where MirroredStrategy is the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from .differences import DIFFERENCES, OF_WRITES
from .test_variables import NAMES, WRITES, difference

DOCUMENT = Path(__file__).parents[2] / "docs" / "distribute.md"


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_documented(name: str) -> None:
    assert f"| {name} |" in DOCUMENT.read_text(encoding="utf-8")


def test_every_difference_of_a_write_shows() -> None:
    shown = {
        difference(synchronization, aggregation, write, where)
        for synchronization in ("AUTO", "ON_READ")
        for aggregation in NAMES
        for write in WRITES
        for where in ("replica", "outside")
    }
    assert shown - {None} == set(OF_WRITES)
