"""Settings for every test of the law."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A step that falls back to eager replicas equals one device too, and is no test of the engine.
    is_error = pytest.mark.filterwarnings("error:.ENG-086.")
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(is_error, append=False)
