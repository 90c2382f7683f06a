"""Calls of the parts of steps, and whether XLA compiles them."""

from __future__ import annotations

from typing import Any

import pytest

from evener._tf_private import graphs


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list to which every call of a part adds whether XLA compiles it."""
    compiled: list[bool] = []
    original = graphs.call

    def call(*args: Any, by_xla: bool = False, **options: Any) -> Any:
        compiled.append(by_xla)
        return original(*args, by_xla=by_xla, **options)

    monkeypatch.setattr(graphs, "call", call)
    return compiled
