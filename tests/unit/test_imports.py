"""No file imports itself by way of others, also not inside of its functions."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_there_is_no_circle() -> None:
    graph = grimp.build_graph("evener", exclude_type_checking_imports=True, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 300
    # Raises CycleError, with the files of a circle.
    TopologicalSorter(imports).prepare()
