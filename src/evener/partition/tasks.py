"""Tasks: the nodes that run together, as one function, on the parts or on one device.

::

    owner 0:  reads ---+                      +--> sums, update
                       +--> parts: forward, --+
    owner 1:  reads ---+    backward          +--> sums, update

A task ends before a node that another device, all parts, or a reader of the whole tensor needs. Its
level is the number of such ends before it, so a task never waits for tasks of higher levels. In
order: the device of each node that is computed once, the place of every node, its level, tasks.

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

import dataclasses
import graphlib
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from evener.devices.names import canonical_device, tf_device
from evener.graph.dims import BATCH, Size, symbols_of
from evener.graph.draws import DRAWS, draws
from evener.graph.functions import FunctionBuilder
from evener.graph.nodes import Graph, Node, Tensor
from evener.graph.ops.layers import is_grouped
from evener.graph.ops.registry import Trait, has_trait
from evener.graph.ops.states import SUM, Numbers, Partial, Sharding, State, rows_of, serves
from evener.partition.layout import HOST, Stages
from evener.partition.shard import is_known_to_parts, requests_of, symbol_sources
from evener.partition.stage import BACKWARD, FORWARD, StagedStep

PARTS = "parts"
# Parts without samples skip these tasks; a separate task if others have counters of loops.
PARTS_WITH_SAMPLES = "parts with samples"
_RESHAPES = frozenset({"ExpandDims", "Identity", "Reshape", "Squeeze"})
# Operations that cost nothing.
_FREE = _RESHAPES | {"Const", "IdentityN", "NoOp", "ReadVariableOp", "Shape", "ShapeN"}


class Place(NamedTuple):
    """Place that the nodes of one task have in common."""

    where: str  # Device, or ``PARTS`` for a call on every part
    stages: Stages = ()  # Stage of the parts in each replica; empty without a schedule
    role: str = ""  # Pass of the parts, if passes are separate tasks
    by_xla: bool = False  # Whether it belongs to a function with ``jit_compile=True``
    # Rows that the parts split. A part may have samples and no row of another kind, and kernels
    # that fail on no rows are not called then
    rows: Size = BATCH

    @property
    def is_parts(self) -> bool:
        return self.where in (PARTS, PARTS_WITH_SAMPLES)


@dataclass(frozen=True, slots=True, eq=False)
class StepTask:
    """Nodes that run as one function."""

    place: Place  # Device and stage in which it runs
    level: int  # Topological level; the task needs only tasks of lower levels
    nodes: tuple[Node, ...] = ()  # Nodes in an order in which they can run
    fetches: tuple[Tensor, ...] = ()  # Tensors that other tasks, or the caller of the step, need

    @property
    def where(self) -> str:
        return self.place.where

    @property
    def is_parts(self) -> bool:
        return self.place.is_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFunction:
    task: StepTask
    builder: FunctionBuilder  # Function with its arguments and outputs
    is_stateful: bool  # Whether it reads or writes state
    is_read_only: bool  # Whether it only reads variables
    needs_samples: bool  # Whether a kernel in it fails on a part without samples
    after: frozenset[StepTask]  # Tasks that run before it although it reads nothing of them
    added_inside: frozenset[Tensor]  # Results that the calls of a device add up, one after another
    by_xla: bool  # Whether XLA compiles it
    obstacle: str  # Reason why XLA does not compile it although it was asked to, or an empty text


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(StagedStep):
    tasks: tuple[StepTask, ...]  # Tasks in an order in which they can run
    task_of: Mapping[Node, StepTask]  # Task of every node that has one
    owners: Mapping[Tensor, str]  # Devices of variables, by the tensors that are their handles
    summed: Set[Tensor]  # Partial sums that are only read as a whole
    # Nodes with outputs whose size depends on the data; empty if XLA is asked to compile nothing
    sized_by_data: Set[Node]

    def requests(self, node: Node) -> Iterator[tuple[Tensor, State | Numbers]]:
        return requests_of(self.sharding, node)


def make_tasks(staged: StagedStep, owners: Mapping[Tensor, str]) -> Partition:
    """Group the nodes of a step by place and level."""
    graph, sharding = staged.graph, staged.sharding
    places = _find_places(staged, owners)
    is_compiled = any(node.xla for node in graph)
    by_data = _sized_by_data(graph).intersection(staged.nodes) if is_compiled else frozenset[Node]()
    levels = _find_levels(staged, places, alone=by_data)
    key_of: dict[Node, _Key] = {node: (places[node], levels[node]) for node in staged.nodes}
    nodes_of: dict[_Key, list[Node]] = {}
    for node, key in key_of.items():
        nodes_of.setdefault(key, []).append(node)
    nodes_of = dict(sorted(nodes_of.items(), key=lambda item: item[0][1]))

    symbols = staged.inference.symbols
    fetched: dict[_Key, dict[Tensor, None]] = defaultdict(dict)
    read_in_parts: set[Tensor] = set()

    def fetch(tensor: Tensor, reader: _Key | None) -> None:
        key = key_of.get(tensor.node)
        if key is not None and key != reader:
            fetched[key][tensor] = None

    for key, nodes in nodes_of.items():
        for node in nodes:
            for tensor, request in requests_of(sharding, node):
                if isinstance(request, Partial) and key_of.get(tensor.node) != key:
                    read_in_parts.add(tensor)
                if not isinstance(request, Numbers) and not tensor.is_sizes:
                    fetch(tensor, key)
            for source in symbol_sources(sharding, node, symbols):
                fetch(source.tensor, key)
    for tensor in graph.outputs:
        fetch(tensor, None)
        for size in tensor.value or ():
            for name in sorted(symbols_of(size) - {"B"}):
                fetch(symbols[name].tensor, None)
    sums = {t for tensors in fetched.values() for t in tensors if sharding.states[t] == SUM}
    tasks = {
        key: StepTask(*key, nodes=tuple(nodes), fetches=tuple(fetched.get(key, ())))
        for key, nodes in nodes_of.items()
    }
    return Partition(
        **{field.name: getattr(staged, field.name) for field in dataclasses.fields(staged)},
        tasks=tuple(tasks.values()),
        task_of={node: tasks[key] for node, key in key_of.items()},
        owners=owners,
        summed=frozenset(sums - read_in_parts),
        sized_by_data=by_data,
    )


def _sized_by_data(nodes: Graph) -> set[Node]:
    by_data: set[Node] = set()
    for node in nodes:
        # Otherwise the batch alone decides about all sizes.
        is_open = any(t.shape is None or symbols_of(*t.shape) - {"B"} for t in node.outputs)
        depends = any(t.node in by_data for t in node.inputs)
        if has_trait(node, Trait.SIZED_BY_DATA) or (is_open and depends):
            by_data.add(node)
    return by_data


def _find_places(staged: StagedStep, owners: Mapping[Tensor, str]) -> dict[Node, Place]:
    sharding, layout = staged.sharding, staged.layout
    homes = find_homes(
        staged.nodes,
        sharding,
        owners=owners,
        default=layout.device(0, layout.first_stages),
        obeys_program=layout.group is None,
    )
    # Fused passes hand over less.
    has_passes = bool(staged.layout.recompute)
    has_lists = any(
        decision.bodies or any(tensor.dtype == tf.variant for tensor in node.outputs)
        for node, decision in sharding.decisions.items()
    )
    with_samples = PARTS_WITH_SAMPLES if has_lists else PARTS
    compiles = frozenset(tf_device(name) for name in layout.devices)
    # Nodes that hand memory over as it is, where XLA would copy it: reads of variables that nothing
    # has written yet, and their reshapes.
    views: set[Node] = set()
    only_grouped = _only_grouped(staged.nodes, sharding)
    places: dict[Node, Place] = {}
    for node in staged.nodes:
        is_read = node.op == "ReadVariableOp" and not any(n.has_side_effect for n in node.after)
        if is_read or (node.op in _RESHAPES and node.inputs[0].node in views):
            views.add(node)
        by_xla = layout.by_xla and bool(node.xla) and node.xla not in only_grouped
        # XLA knows no text.
        by_xla &= not any(t.dtype == tf.string for t in (*node.inputs, *node.outputs))
        decision = sharding.decisions.get(node)
        if decision is not None:
            places[node] = Place(
                with_samples if decision.needs_samples else PARTS,
                staged.stages.get(node, ()),
                staged.passes.get(node, "") if has_passes else "",
                by_xla=by_xla,
                rows=rows_of(decision),
            )
        elif layout.group is not None and draws(node):
            places[node] = Place(homes[node], role=DRAWS)
        else:
            # Nodes on the host beside other devices are small, or text, which XLA does not know.
            by_xla &= homes[node] in compiles and node not in views
            places[node] = Place(homes[node], by_xla=by_xla)
    return places


def find_homes(
    nodes: Sequence[Node],
    sharding: Sharding,
    *,
    owners: Mapping[Tensor, str],
    default: str,
    obeys_program: bool = True,
) -> dict[Node, str]:
    """Return the device of every node that is computed once.

    A node whose result ends in a variable runs on the variable's owner: so gradients are summed
    there, and the optimizer runs there. Other nodes run on the device of their largest input.
    """
    homes: dict[Node, str] = {}
    wanted: dict[Tensor, str] = {}
    once = [node for node in nodes if node not in sharding.decisions]
    for node in reversed(once):
        handle = next((t for t in node.inputs if t.dtype == tf.resource), None)
        if handle is not None:
            home = owners.get(handle, HOST)
        elif any(tensor.dtype == tf.string for tensor in (*node.inputs, *node.outputs)):
            home = HOST
        else:
            home = canonical_device(node.device) if obeys_program else ""
        home = home or next((wanted[t] for t in node.outputs if t in wanted), "")
        if home:
            homes[node] = home
            size = _elements(node.outputs[0]) if node.outputs else None
            for tensor in node.inputs:
                if size is None or _elements(tensor) == size != 1:
                    wanted.setdefault(tensor, home)
    for node in once:
        if node not in homes:
            candidates = [t for t in node.inputs if t.node in homes or t in wanted]
            largest = max(candidates, key=lambda t: _elements(t) or 0, default=None)
            if largest is None:
                homes[node] = default
            else:
                homes[node] = wanted.get(largest) or homes[largest.node]
    return homes


def _elements(tensor: Tensor) -> int | None:
    sizes = [size for size in tensor.shape or () if isinstance(size, int)]
    return math.prod(sizes) if tensor.shape is not None and len(sizes) == tensor.rank else None


def _only_grouped(nodes: Sequence[Node], sharding: Sharding) -> Collection[str]:
    """Return the compiled functions that compute a convolution of several groups and nothing else.

    Keras asks XLA for them, as TensorFlow lacks kernels that the rules of the parts do without.
    """
    grouped: set[str] = set()
    others: set[str] = set()
    for node in nodes:
        if node.xla and node.op not in _FREE:
            decision = sharding.decisions.get(node)
            is_split = decision is not None and is_grouped(node)
            has_kernel = node.op == "Conv2D" or (
                decision is not None and decision.lower is not None
            )
            (grouped if is_split and has_kernel else others).add(node.xla)
    return grouped - others


# For each node the nodes it waits for, and whether both can be in one task.
_Dependencies: TypeAlias = Mapping[Node, Sequence[tuple[Node, bool]]]
_Key: TypeAlias = tuple[Place, int]  # Place and level: nodes with the same ones are a task


def _find_levels(
    staged: StagedStep, places: Mapping[Node, Place], alone: Collection[Node] = ()
) -> dict[Node, int]:
    nodes = staged.nodes
    dependencies = {node: list(_dependencies(staged, node, places)) for node in nodes}
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
    staged: StagedStep, node: Node, places: Mapping[Node, Place]
) -> Iterator[tuple[Node, bool]]:
    """Yield the nodes that a node waits for, and whether both can be in one task."""
    place, sharding = places[node], staged.sharding
    for tensor, request in requests_of(sharding, node):
        before = tensor.node
        if before in places and not isinstance(request, Numbers) and not tensor.is_sizes:
            yield before, places[before] == place and serves(sharding.states[tensor], request)
    for source in symbol_sources(sharding, node, staged.inference.symbols):
        before = source.tensor.node
        if before in places:
            is_known = is_known_to_parts(source, sharding.states[source.tensor])
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
    """
    while True:
        tasks = _tasks(levels, dependencies, places)
        pair = _mergeable(tasks, {(places[node], levels[node]) for node in alone})
        if pair is None:
            return
        early, late = pair
        merged = {task: late if task == early else task for task in tasks}
        before: dict[_Key, set[_Key]] = {task: set() for task in tasks if task != early}
        for task, needs in tasks.items():
            before[merged[task]] |= {merged[need] for need in needs} - {merged[task]}
        depths: dict[_Key, int] = {}
        for task in graphlib.TopologicalSorter(before).static_order():
            depths[task] = max((depths[need] + 1 for need in before[task]), default=0)
        for node, level in levels.items():
            levels[node] = depths[merged[places[node], level]]


def _tasks(
    levels: Mapping[Node, int], dependencies: _Dependencies, places: Mapping[Node, Place]
) -> dict[_Key, dict[_Key, bool]]:
    """Return the tasks by level: which others each needs, and whether both can be one."""
    tasks: dict[_Key, dict[_Key, bool]] = {}
    for node, level in levels.items():
        needs = tasks.setdefault((places[node], level), {})
        for before, is_same in dependencies[node]:
            need = places[before], levels[before]
            if need != (places[node], level):
                needs[need] = needs.get(need, True) and is_same
    return dict(sorted(tasks.items(), key=lambda item: item[0][1]))


def _mergeable(
    tasks: Mapping[_Key, Mapping[_Key, bool]], alone: Set[_Key]
) -> tuple[_Key, _Key] | None:
    """Return a task of the parts, and the next one of its place, if they can be one."""
    by_place: dict[Place, list[_Key]] = defaultdict(list)
    for task in tasks:
        if task[0].is_parts:
            by_place[task[0]].append(task)
    pairs = [pair for of_place in by_place.values() for pair in itertools.pairwise(of_place)]
    pairs.sort(key=lambda pair: -pair[1][1])
    free = (pair for pair in pairs if alone.isdisjoint(pair))
    return next((pair for pair in free if not _needs_elsewhere(*pair, tasks)), None)


def _needs_elsewhere(early: _Key, late: _Key, tasks: Mapping[_Key, Mapping[_Key, bool]]) -> bool:
    """Return whether a task needs what an earlier one of its place hands to others."""
    if not tasks[late].get(early, True):
        return True
    elsewhere = {early}
    for task in tasks:
        if task != late and not elsewhere.isdisjoint(tasks[task]):
            elsewhere.add(task)
    return not (elsewhere - {early}).isdisjoint(tasks[late])


def _fuse_last_stages(
    staged: StagedStep, levels: dict[Node, int], dependencies: _Dependencies
) -> None:
    """Raise the levels of last stages to those of their backward pass: both passes are one task.

    External inputs of the backward pass, such as the number of samples, would split the task: all
    saved activations would become outputs, and stay in memory to the end. Nodes that the backward
    pass needs by way of another task must not wait for it::

        fused    f1 ----> f2 ----> f3 ----> b3 ----> b2          f1 keeps its level
                  +--> mean of all --^       ^-- number of samples
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
    staged: StagedStep, levels: dict[Node, int], late: Collection[Node], dependencies: _Dependencies
) -> None:
    """Raise the levels of some nodes to those of their readers in the same pass: fewer tasks.

    Not beyond the backward pass of their stage: a loss that is returned after all updates would
    keep the activations that it is computed from.
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
