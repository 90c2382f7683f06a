"""After how many other tasks each node of a step can run: its level.

::

    level 0     reads of weights            number of samples
    level 1     forward, stage 0
    level 2     forward and backward, last stage
    level 3     backward, stage 0           updates of the last stage
    level 4     updates of stage 0

The nodes of one place and one level are a task. A level that is higher than it must be makes fewer
tasks, of which each hands less over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from evener.engine.pipeline.layout import Layout, Stages
from evener.engine.pipeline.stages import BACKWARD, FORWARD
from evener.graph.nodes import Node

Dependencies: TypeAlias = Mapping[Node, Sequence[tuple[Node, bool]]]
"""For each node those it waits for, and whether both can be in one task."""


def find_levels(
    nodes: Sequence[Node],
    layout: Layout,
    stages: Mapping[Node, Stages],
    passes: Mapping[Node, str],
    waits: Collection[Node],
    dependencies: Callable[[Node], Iterator[tuple[Node, bool]]],
) -> dict[Node, int]:
    """Return the level of every node: after all tasks of lower levels that it needs.

    Args:
        nodes: In an order in which they can run.
        layout: The parts.
        stages: Of the nodes that the parts compute.
        passes: Of the nodes that the parts compute.
        waits: The nodes that are computed again.
        dependencies: Yields what a node waits for, and whether both can be in one task.
    """
    of_step = set(nodes)
    before = {
        node: [(one, same) for one, same in dependencies(node) if one in of_step] for node in nodes
    }
    levels: dict[Node, int] = {}
    for node in nodes:
        levels[node] = _least_level(node, levels, before)
    if layout.is_scheduled:
        last = tuple(len(replica.stages) - 1 for replica in layout.replicas)
        joint = {node for node in passes if stages.get(node) == last}
        _join_passes(nodes, levels, joint, passes, before)
        # And what backward passes need of samples alone, such as the rows of a table.
        late = set(waits) | {
            node
            for node, name in passes.items()
            if name == FORWARD or (name == BACKWARD and levels[node] == 0)
        }
        _compute_late(nodes, levels, passes, stages, late, before)
    return levels


def _least_level(node: Node, levels: Mapping[Node, int], dependencies: Dependencies) -> int:
    return max((levels[one] + (not same) for one, same in dependencies[node]), default=0)


def _join_passes(
    nodes: Sequence[Node],
    levels: dict[Node, int],
    joint: Collection[Node],
    passes: Mapping[Node, str],
    dependencies: Dependencies,
) -> None:
    """Raise the levels of a last stage to that of its backward pass: both passes are one task.

    What the backward pass waits for, such as the number of samples, which another device computes,
    would part them else: all that the forward pass keeps would be handed over, and stay to the end.
    What the backward pass needs by way of another task must not wait for it::

        joint    f1 ----> f2 ----> f3 ----> b3 ----> b2          f1 stays where it is
                  +--> mean of all --^       ^-- number of samples

    Args:
        nodes: In an order in which they can run.
        levels: Of the nodes; changed.
        joint: The nodes of the last stage.
        passes: Of the nodes.
        dependencies: Of the nodes.
    """
    backward = {node for node in joint if passes[node] == BACKWARD}
    highest = max((levels[node] for node in backward), default=0)
    leads_there = set(backward)
    leaves: set[Node] = set()
    for node in reversed(nodes):
        if node not in leads_there:
            continue
        for before, is_same in dependencies[node]:
            leads_there.add(before)
            if not is_same or node not in joint or node in leaves:
                leaves.add(before)
    for node in nodes:
        level = _least_level(node, levels, dependencies)
        levels[node] = max(level, highest) if node in joint and node not in leaves else level


def _compute_late(
    nodes: Sequence[Node],
    levels: dict[Node, int],
    passes: Mapping[Node, str],
    stages: Mapping[Node, Stages],
    late: Collection[Node],
    dependencies: Dependencies,
) -> None:
    """Raise the levels of some nodes to where others of their pass need them: fewer tasks.

    Not beyond the backward pass of their stage: a loss that is returned when all updates are done
    would keep what it is computed from.
    """
    last: dict[Stages, int] = {}
    for node, name in passes.items():
        if name == BACKWARD:
            last[stages[node]] = max(levels[node], last.get(stages[node], 0))
    most: dict[Node, int] = {}
    is_needed: set[Node] = set()
    for node in reversed(nodes):
        if node in late and node in is_needed and most[node] <= last.get(stages[node], most[node]):
            levels[node] = most[node]
        for before, is_same in dependencies[node]:
            level = levels[node] - (not is_same)
            most[before] = min(level, most.get(before, level))
            if is_same and passes.get(before) == passes.get(node):
                is_needed.add(before)
