"""Every example of docs/plan.md runs."""

from __future__ import annotations

import doctest
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs" / "plan.md"


def test_examples_of_the_page_run() -> None:
    failed, attempted = doctest.testfile(str(DOCS), module_relative=False, encoding="utf-8")
    assert attempted > 15
    assert failed == 0
