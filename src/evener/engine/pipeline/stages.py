"""Stage of each node of a step.

::

    node                              stage
    of a layer                        the layer's
    of a layer's gradient             the layer's
    of samples alone: labels, counts  the earliest among its readers
    other                             the latest among its inputs

Stages are a matter of speed: a node computes the same in every stage.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence

from evener.engine.pipeline.layout import Layout, Stages
from evener.engine.pipeline.scopes import Scopes
from evener.graph.nodes import Node
from evener.ops.decision import Sharding


def find_stages(
    nodes: Sequence[Node], sharding: Sharding, layout: Layout, scopes: Scopes
) -> dict[Node, Stages]:
    """Return the stage of every node that the parts compute.

    Args:
        nodes: Nodes in an order in which they can run.
        sharding: Nodes that the parts compute.
        layout: Stages of the layers.
        scopes: Layers of the nodes.
    """
    stages: dict[Node, Stages] = {}
    stages_of = functools.cache(layout.stages_of)
    of_no_layer: list[Node] = []
    for node in nodes:
        if node not in sharding.decisions:
            continue
        own = stages_of(scopes.path(node))
        before = [stages[t.node] for t in node.inputs if t.node in stages]
        latest = map(max, zip(*before, strict=True)) if before else layout.first_stages
        pairs = zip(own, latest, strict=True)
        stages[node] = tuple(late if mine is None else mine for mine, late in pairs)
        if own == stages_of(""):
            of_no_layer.append(node)
    _move_to_readers(of_no_layer, stages)
    return stages


def _move_to_readers(of_no_layer: Sequence[Node], stages: dict[Node, Stages]) -> None:
    """Move nodes that depend on samples alone to the first stage that reads them.

    Otherwise labels would cross all stages, and a loss would wait for the first one.

    Args:
        of_no_layer: Nodes of no layer, in an order in which they can run.
        stages: Stages of all nodes of the parts; changed.
    """
    free: set[Node] = set()
    for node in of_no_layer:
        if all(t.node in free for t in node.inputs if t.node in stages):
            free.add(node)
    readers: dict[Node, list[Node]] = defaultdict(list)
    for node in stages:
        for tensor in node.inputs:
            if tensor.node in free:
                readers[tensor.node].append(node)
    for node in reversed(of_no_layer):
        if readers[node]:
            earliest = map(min, zip(*(stages[reader] for reader in readers[node]), strict=True))
            stages[node] = tuple(earliest)
