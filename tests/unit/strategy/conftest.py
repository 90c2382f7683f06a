"""Samples that devices were given, for the tests beside this file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from evener.strategy.prepared import PreparedStep


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The samples of each device, of every call outside of graphs."""
    seen: list[tuple[int, ...]] = []
    original = PreparedStep.__call__

    def noted(self: Any, tensors: Sequence[Any], sizes: Sequence[int], *state: Any) -> Any:
        seen.append(tuple(sizes))
        return original(self, tensors, sizes, *state)

    monkeypatch.setattr(PreparedStep, "__call__", noted)
    return seen
