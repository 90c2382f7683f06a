"""Topological level of each node, counted in tasks.

::

    level 0     reads of weights            number of samples
    level 1     forward, stage 0
    level 2     forward and backward, last stage
    level 3     backward, stage 0           updates of the last stage
    level 4     updates of stage 0

The nodes of one place and one level are a task. Levels are raised above the least possible ones
where that makes fewer tasks, which hand less over: of the parts a forward and backward pass that
wait for different weights, or for the number of samples, are one task nevertheless.
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from evener.engine.partition.places import Place
from evener.engine.pipeline.layout import Stages
from evener.engine.pipeline.passes import BACKWARD, FORWARD
from evener.engine.pipeline.staged_step import StagedStep
from evener.engine.sharding.reads import is_known_to_parts
from evener.engine.sharding.sharded_step import ShardedStep
from evener.graph.nodes import Node
from evener.ops.states import Numbers, serves

_Dependencies: TypeAlias = Mapping[Node, Sequence[tuple[Node, bool]]]
"""For each node the nodes it waits for, and whether both can be in one task."""
_Task: TypeAlias = tuple[Place, int]
"""Place and level of a task."""


def find_levels(
    staged: StagedStep, places: Mapping[Node, Place], alone: Collection[Node] = ()
) -> dict[Node, int]:
    """Return the level of every node: above the levels of all other tasks that it needs.

    Args:
        staged: Step.
        places: Places of its nodes.
        alone: Nodes whose tasks are as small as possible, because XLA compiles none with them.
    """
    nodes = staged.nodes
    dependencies = {node: list(_dependencies(staged.sharded, node, places)) for node in nodes}
    levels: dict[Node, int] = {}
    for node in nodes:
        levels[node] = _least_level(node, levels, dependencies)
    if staged.layout.is_scheduled:
        _fuse_last_stages(staged, levels, dependencies)
        # Also nodes of the backward pass that need samples alone, such as the rows of a table.
        late = set(staged.gates) | {
            node
            for node, name in staged.passes.items()
            if name == FORWARD or (name == BACKWARD and levels[node] == 0)
        }
        _compute_late(staged, levels, late, dependencies)
    else:
        merge_parts(levels, dependencies, places, frozenset(alone))
    return levels


def _dependencies(
    sharded: ShardedStep, node: Node, places: Mapping[Node, Place]
) -> Iterator[tuple[Node, bool]]:
    """Yield the nodes that a node waits for, and whether both can be in one task."""
    place, states = places[node], sharded.sharding.states
    for tensor, request in sharded.requests(node):
        before = tensor.node
        if before in places and not isinstance(request, Numbers) and not tensor.is_sizes:
            yield before, places[before] == place and serves(states[tensor], request)
    for source in sharded.symbol_sources(node):
        before = source.tensor.node
        if before in places:
            is_known = is_known_to_parts(source, states[source.tensor])
            yield before, places[before] == place and is_known
    for before in node.after:
        if before in places:
            yield before, places[before] == place


def _least_level(node: Node, levels: Mapping[Node, int], dependencies: _Dependencies) -> int:
    return max((levels[before] + (not same) for before, same in dependencies[node]), default=0)


def merge_parts(
    levels: dict[Node, int],
    dependencies: _Dependencies,
    places: Mapping[Node, Place],
    alone: Collection[Node],
) -> None:
    """Make one task of two tasks of the parts, if nothing between them needs the earlier one.

    The later task is tried first: it has most to take over::

        parts ----> sum ----> parts          two tasks
        parts ------------+-> parts          one task, when the weight is there
        weight ---> cast -+

    Tasks are moved as a whole. So every round leaves fewer of them, and comes to an end.

    Args:
        levels: Levels of the nodes; changed.
        dependencies: Dependencies of the nodes.
        places: Places of the nodes.
        alone: Nodes whose tasks stay as they are.
    """
    while True:
        tasks = _tasks(levels, dependencies, places)
        pair = _mergeable(tasks, {(places[node], levels[node]) for node in alone})
        if pair is None:
            return
        early, late = pair
        merged = {task: late if task == early else task for task in tasks}
        before: dict[_Task, set[_Task]] = {task: set() for task in tasks if task != early}
        for task, needs in tasks.items():
            before[merged[task]] |= {merged[need] for need in needs} - {merged[task]}
        depths: dict[_Task, int] = {}
        for task in graphlib.TopologicalSorter(before).static_order():
            depths[task] = max((depths[need] + 1 for need in before[task]), default=0)
        for node, level in levels.items():
            levels[node] = depths[merged[places[node], level]]


def _tasks(
    levels: Mapping[Node, int], dependencies: _Dependencies, places: Mapping[Node, Place]
) -> dict[_Task, dict[_Task, bool]]:
    """Return the tasks by level: which others each needs, and whether both can be one."""
    tasks: dict[_Task, dict[_Task, bool]] = {}
    for node, level in levels.items():
        needs = tasks.setdefault((places[node], level), {})
        for before, is_same in dependencies[node]:
            need = places[before], levels[before]
            if need != (places[node], level):
                needs[need] = needs.get(need, True) and is_same
    return dict(sorted(tasks.items(), key=lambda item: item[0][1]))


def _mergeable(
    tasks: Mapping[_Task, Mapping[_Task, bool]], alone: Collection[_Task]
) -> tuple[_Task, _Task] | None:
    """Return a task of the parts, and the next one of its place, if they can be one."""
    by_place: dict[Place, list[_Task]] = {}
    for task in tasks:
        if task[0].is_parts:
            by_place.setdefault(task[0], []).append(task)
    pairs = [pair for of_place in by_place.values() for pair in itertools.pairwise(of_place)]
    for early, late in sorted(pairs, key=lambda pair: -pair[1][1]):
        is_alone = early in alone or late in alone
        if not is_alone and not _needs_elsewhere(early, late, tasks):
            return early, late
    return None


def _needs_elsewhere(
    early: _Task, late: _Task, tasks: Mapping[_Task, Mapping[_Task, bool]]
) -> bool:
    """Return whether a task needs what an earlier one of its place hands to others."""
    if not tasks[late].get(early, True):
        return True
    elsewhere = set[_Task]()
    for task in tasks:
        if task != late and any(need == early or need in elsewhere for need in tasks[task]):
            elsewhere.add(task)
    return any(need in elsewhere for need in tasks[late])


def _fuse_last_stages(
    staged: StagedStep, levels: dict[Node, int], dependencies: _Dependencies
) -> None:
    """Raise the levels of last stages to those of their backward pass: both passes are one task.

    External inputs of the backward pass, such as the number of samples, would split the task: all
    saved activations would become outputs, and stay in memory to the end. Nodes that the backward
    pass needs by way of another task must not wait for it::

        fused    f1 ----> f2 ----> f3 ----> b3 ----> b2          f1 keeps its level
                  +--> mean of all --^       ^-- number of samples

    Args:
        staged: Step.
        levels: Levels of the nodes; changed.
        dependencies: Dependencies of the nodes.
    """
    last = tuple(len(replica.stages) - 1 for replica in staged.layout.replicas)
    fused = {node for node in staged.passes if staged.stages.get(node) == last}
    backward = {node for node in fused if staged.passes[node] == BACKWARD}
    highest = max((levels[node] for node in backward), default=0)
    leads_there = set(backward)
    leaves: set[Node] = set()
    for node in reversed(staged.nodes):
        if node not in leads_there:
            continue
        for before, is_same in dependencies[node]:
            leads_there.add(before)
            if not is_same or node not in fused or node in leaves:
                leaves.add(before)
    for node in staged.nodes:
        level = _least_level(node, levels, dependencies)
        levels[node] = max(level, highest) if node in fused and node not in leaves else level


def _compute_late(
    staged: StagedStep,
    levels: dict[Node, int],
    late: Collection[Node],
    dependencies: _Dependencies,
) -> None:
    """Raise the levels of some nodes to those of their readers in the same pass: fewer tasks.

    Not beyond the backward pass of their stage: a loss that is returned after all updates would
    keep the activations that it is computed from.

    Args:
        staged: Step.
        levels: Levels of the nodes; changed.
        late: Nodes whose levels may be raised.
        dependencies: Dependencies of the nodes.
    """
    stages, passes = staged.stages, staged.passes
    last: dict[Stages, int] = {}
    for node, name in passes.items():
        if name == BACKWARD:
            last[stages[node]] = max(levels[node], last.get(stages[node], 0))
    most: dict[Node, int] = {}
    is_needed: set[Node] = set()
    for node in reversed(staged.nodes):
        if node in late and node in is_needed and most[node] <= last.get(stages[node], most[node]):
            levels[node] = most[node]
        for before, is_same in dependencies[node]:
            level = levels[node] - (not is_same)
            most[before] = min(level, most.get(before, level))
            if is_same and passes.get(before) == passes.get(node):
                is_needed.add(before)
