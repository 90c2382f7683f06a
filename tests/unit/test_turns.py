"""In as many turns as there are, every long case is run once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turns import not_in_turn, turn_of


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_every_case_has_its_turn(turns: int) -> None:
    names = [f"a.py::test_{test}[{case}]" for test in "xyz" for case in range(7)] + ["a.py::test"]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    run: Counter[str] = Counter()
    for turn in range(5, 5 + turns):
        others = {item.nodeid for item in not_in_turn(items, turn, turns)}
        run.update(set(names) - others)
        for test in "xyz":
            assert sum(f"test_{test}[" in name for name in others) <= 7 - 7 // turns
    assert run == Counter(names)


def test_the_turn_is_that_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    first = turn_of(tmp_path)
    turn_of.cache_clear()
    assert turn_of(tmp_path) == first
    (tmp_path / "a.py").write_text("x = 2")
    turn_of.cache_clear()
    assert turn_of(tmp_path) != first
