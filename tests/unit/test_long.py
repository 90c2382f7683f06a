"""The list of what is left to the long campaign names tests that are there."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LONG = tomllib.loads((TESTS / "long.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [*LONG["all"], *LONG["every"]])
def test_it_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
