"""docs/clusters.md: its example runs, its file is read, its tables are complete."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from evener import clusters
from evener.clusters import cluster_names, model_names, parse_cluster
from evener.planner.published_models import bert_large

DOCUMENT = Path(__file__).parents[3] / "docs" / "clusters.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")


def test_the_example_runs_as_it_stands() -> None:
    failed, tried = doctest.testfile(str(DOCUMENT), module_relative=False)
    assert tried > 5
    assert failed == 0


def test_the_cluster_file_is_read() -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    described = parse_cluster(example)
    assert len(described.cluster.devices) == 8
    assert described.types["old"].datasheet is None
    blocks = bert_large().costs.layers[1:2]
    assert described.types["old"].measured(blocks[0]) is not None


def test_all_clusters_and_models_are_named() -> None:
    for name in (*cluster_names(), *model_names()):
        assert f"`{name}`" in TEXT


def test_the_functions_of_the_page_are_public() -> None:
    names = set(re.findall(r"`(\w+)\(", TEXT))
    assert len(names) > 4
    assert names <= {*clusters.__all__, "make_plan"}
