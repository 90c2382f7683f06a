from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from evener.run.script import Loading


def test_two_may_wait_for_the_same_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As TensorFlow and Keras do, the outer imports the inner, and is not whole then."""
    (tmp_path / "outer_module.py").write_text("import inner_module\nwhole = True\n")
    (tmp_path / "inner_module.py").write_text("import outer_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen = list[tuple[str, bool]]()

    def see(name: str) -> None:
        seen.append((name, hasattr(sys.modules["outer_module"], "whole")))

    Loading(("outer_module", "inner_module"), lambda: see("both")).watch()
    Loading(("outer_module",), lambda: see("outer")).watch()
    try:
        importlib.import_module("outer_module")
    finally:
        for name in ("outer_module", "inner_module"):
            sys.modules.pop(name, None)
    assert sorted(seen) == [("both", True), ("outer", True)]
