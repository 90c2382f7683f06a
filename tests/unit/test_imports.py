"""No file imports itself by way of others, neither inside of its functions nor for its types."""

from __future__ import annotations

import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest


@pytest.mark.parametrize("with_types", [False, True])
def test_there_is_no_circle(with_types: bool) -> None:
    graph = grimp.build_graph(
        "evener", exclude_type_checking_imports=not with_types, cache_dir=None
    )
    imports = {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}
    assert len(imports) > 150
    if with_types:
        # It lists the public names for IDEs, and holds the version.
        del imports["evener"]
    # Raises CycleError, with the files of a circle.
    TopologicalSorter(imports).prepare()


def test_a_circle_is_seen() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


def test_every_folder_has_a_contract() -> None:
    root = Path(__file__).parents[2]
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    held = {
        name.removesuffix(".*")
        for contract in contracts
        for name in (*contract.get("containers", ()), *contract.get("modules", ()))
    }
    folders = [path.parent for path in (root / "src").rglob("__init__.py")]
    large = {
        ".".join(folder.relative_to(root / "src").parts)
        for folder in folders
        if len([path for path in folder.glob("*.py") if path.stem != "__init__"]) > 3
    }
    assert large - held == set()
