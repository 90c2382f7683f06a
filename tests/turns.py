"""Turns of the long cases: a landing runs half of each test's."""

from __future__ import annotations

import collections
import functools
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest


@functools.cache
def turn_of(folder: Path) -> int:
    """Return a number of the content of all modules in a folder."""
    paths = sorted(folder.rglob("*.py"))
    return zlib.crc32(b"".join(path.read_bytes() for path in paths))


def not_in_turn(items: Iterable[pytest.Item], turn: int, turns: int) -> Iterator[pytest.Item]:
    """Yield the cases of other turns; in as many turns, each case has its own once."""
    counted: collections.Counter[str] = collections.Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if (counted[test] + zlib.crc32(test.encode()) + turn) % turns:
            yield item
        counted[test] += 1
