"""No file imports itself by way of others, neither inside of its functions nor for its types."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

# Circles by type annotations that are still there; the list is to become empty.
KNOWN_CIRCLES = (
    ("evener.engine.extended", "evener.engine.strategy"),
    ("evener.engine.trace.graph", "evener.engine.trace.row_loops"),
    ("evener.engine.trace.inference", "evener.engine.trace.first_sizes"),
    ("evener.launch.first_step", "evener.launch.named"),
)


@pytest.mark.parametrize("with_types", [False, True])
def test_there_is_no_circle(with_types: bool) -> None:
    graph = grimp.build_graph(
        "evener", exclude_type_checking_imports=not with_types, cache_dir=None
    )
    imports = {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}
    assert len(imports) > 300
    if with_types:
        # It lists the public names for IDEs, and holds the version.
        del imports["evener"]
        for importer, imported in KNOWN_CIRCLES:
            imports[importer].discard(imported)
    # Raises CycleError, with the files of a circle.
    TopologicalSorter(imports).prepare()


def test_known_circles_are_circles() -> None:
    graph = grimp.build_graph("evener", exclude_type_checking_imports=False, cache_dir=None)
    for importer, imported in KNOWN_CIRCLES:
        assert graph.direct_import_exists(importer=importer, imported=imported)
        assert graph.chain_exists(importer=imported, imported=importer)


def test_a_circle_is_seen() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
