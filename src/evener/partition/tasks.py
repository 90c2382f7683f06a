"""Tasks: the nodes that run together, as one function, on the parts or on one device.

    owner 0:  reads ---+                      +--> sums, update
                       +--> parts: forward, --+
    owner 1:  reads ---+    backward          +--> sums, update

A task ends before a node that another device, all parts, or a reader of the whole tensor needs. Its
level is the number of such ends before it, so a task never waits for tasks of higher levels. In
order: the device of each node that is computed once, the place of every node, its level, tasks.
"""

from __future__ import annotations

import graphlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from evener.devices.names import canonical_device, tf_device
from evener.graph.dims import BATCH, Size, symbols_of
from evener.graph.draws import DRAWS, draws
from evener.graph.inference import Inference
from evener.graph.nodes import Graph, Node, Tensor
from evener.graph.ops.layers import is_grouped
from evener.graph.ops.registry import Trait, has_trait
from evener.graph.ops.states import SUM, Numbers, Partial, Sharding, State, rows_of, serves
from evener.partition.functions import FunctionBuilder
from evener.partition.layout import Layout, Stages
from evener.partition.shard import ShardedStep, is_known_to_parts
from evener.partition.stage import BACKWARD, FORWARD, WEIGHTS, StagedStep

# Homes: the devices of nodes that are computed once.
#
# A node whose result ends in a variable runs on the variable's owner: so gradients are summed
# there,
# and the optimizer runs there. Other nodes run on the device of their largest input.

HOST = "/device:CPU:0"


def find_homes(
    nodes: Sequence[Node],
    sharding: Sharding,
    *,
    owner_of: Callable[[Tensor], str],
    default: str,
    obeys_program: bool = True,
) -> dict[Node, str]:
    """Return the device of every node that is computed once."""
    homes: dict[Node, str] = {}
    wanted: dict[Tensor, str] = {}
    for node in reversed(nodes):
        if node in sharding.decisions:
            continue
        home = _fixed_home(node, owner_of, obeys_program=obeys_program)
        if not home:
            home = next((wanted[t] for t in node.outputs if t in wanted), "")
        if home:
            homes[node] = home
            size = _elements(node.outputs[0]) if node.outputs else None
            for tensor in node.inputs:
                if size is None or _elements(tensor) == size != 1:
                    wanted.setdefault(tensor, home)
    for node in nodes:
        if node in sharding.decisions or node in homes:
            continue
        candidates = [t for t in node.inputs if t.node in homes or t in wanted]
        if candidates:
            largest = max(candidates, key=lambda t: _elements(t) or 0)
            homes[node] = wanted.get(largest) or homes[largest.node]
        else:
            homes[node] = default
    return homes


def _fixed_home(node: Node, owner_of: Callable[[Tensor], str], *, obeys_program: bool) -> str:
    """Return the device that a node has to be on, or an empty string."""
    for tensor in node.inputs:
        if tensor.dtype == tf.resource:
            return owner_of(tensor)
    if any(tensor.dtype == tf.string for tensor in (*node.inputs, *node.outputs)):
        return HOST
    return canonical_device(node.device) if obeys_program else ""


def _elements(tensor: Tensor) -> int | None:
    shape = tensor.shape
    if shape is None or not all(isinstance(size, int) for size in shape):
        return None
    return math.prod(size for size in shape if isinstance(size, int))


# Place of each node: the device and the stage in which its task runs.

_RESHAPES = frozenset({"ExpandDims", "Identity", "Reshape", "Squeeze"})
_FREE = _RESHAPES | {"Const", "IdentityN", "NoOp", "ReadVariableOp", "Shape", "ShapeN"}
"""Operations that cost nothing."""
PARTS = "parts"
PARTS_WITH_SAMPLES = "parts with samples"
"""Parts without samples skip these tasks; a separate task if others have counters of loops."""


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
        """Whether it is on every part, and not on one device."""
        return self.where in (PARTS, PARTS_WITH_SAMPLES)


def find_places(staged: StagedStep, owner_of: Callable[[Tensor], str]) -> dict[Node, Place]:
    """Return the place of every node of a step."""
    sharding, layout = staged.sharded.sharding, staged.layout
    first_device = layout.device(0, layout.first_stages)
    roles = _roles(staged)
    with_samples = PARTS_WITH_SAMPLES if _has_lists(sharding) else PARTS
    compiles = frozenset(tf_device(name) for name in layout.devices)
    homes = find_homes(
        staged.nodes,
        sharding,
        owner_of=owner_of,
        default=first_device,
        obeys_program=layout.group is None,
    )

    views = _views(staged.nodes)
    only_grouped = _only_grouped(staged.nodes, sharding) if layout.by_xla else frozenset()

    def is_for_xla(node: Node) -> bool:
        return layout.by_xla and _is_for_xla(node) and node.xla not in only_grouped

    def place_of(node: Node) -> Place:
        decision = sharding.decisions.get(node)
        if decision is None:
            # Nodes on the host beside other devices are small, or text, which XLA does not know.
            home = homes[node]
            if layout.group is not None and draws(node):
                return Place(home, role=DRAWS)
            by_xla = home in compiles and is_for_xla(node) and node not in views
            return Place(home, by_xla=by_xla)
        role = staged.passes.get(node, "")
        return Place(
            with_samples if decision.needs_samples else PARTS,
            staged.stages.get(node, ()),
            role if role in roles else "",
            by_xla=is_for_xla(node),
            rows=rows_of(decision),
        )

    return {node: place_of(node) for node in staged.nodes}


def _roles(staged: StagedStep) -> Collection[str]:
    """Return the passes that are separate tasks; fused passes hand over less."""
    return set(staged.passes.values()) if staged.layout.recompute else (WEIGHTS,)


def _has_lists(sharding: Sharding) -> bool:
    return any(
        decision.bodies or any(tensor.dtype == tf.variant for tensor in node.outputs)
        for node, decision in sharding.decisions.items()
    )


def _views(nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes that hand memory over as it is, where XLA would copy it.

    They are the reads of variables that nothing has written yet, and their reshapes.
    """
    found: set[Node] = set()
    for node in nodes:
        is_unwritten = node.op == "ReadVariableOp" and not any(
            before.has_side_effect for before in node.after
        )
        if is_unwritten or (node.op in _RESHAPES and node.inputs[0].node in found):
            found.add(node)
    return found


def _only_grouped(nodes: Sequence[Node], sharding: Sharding) -> Collection[str]:
    """Return the compiled functions that compute a convolution of several groups and nothing else.

    Keras asks XLA for them, as TensorFlow lacks kernels that the rules of the parts do without.
    """
    found: set[str] = set()
    others: set[str] = set()
    for node in nodes:
        if not node.xla or node.op in _FREE:
            continue
        decision = sharding.decisions.get(node)
        has_kernel = node.op == "Conv2D" or (decision is not None and decision.lower is not None)
        is_split = decision is not None and is_grouped(node) and has_kernel
        (found if is_split else others).add(node.xla)
    return found - others


def _is_for_xla(node: Node) -> bool:
    """Return whether XLA is asked to compile a node and can. It knows no text."""
    if not node.xla:
        return False
    return not any(tensor.dtype == tf.string for tensor in (*node.inputs, *node.outputs))


# Tensors with sizes that nobody knows before the data is there.


def sizes_of_data(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes that give tensors whose size depends on what is in the data."""
    found: set[Node] = set()
    for node in nodes:
        is_open = not all(map(_is_known, node.outputs))
        if has_trait(node, Trait.SIZED_BY_DATA) or (
            is_open and any(t.node in found for t in node.inputs)
        ):
            found.add(node)
    return found


def _is_known(tensor: Tensor) -> bool:
    """Return whether the batch alone decides about all sizes."""
    names = {name for size in tensor.shape or () for name in symbols_of(size)}
    return tensor.shape is not None and names <= {"B"}


# Topological level of each node, counted in tasks.
#
# ::
#
#     level 0     reads of weights            number of samples
#     level 1     forward, stage 0
#     level 2     forward and backward, last stage
#     level 3     backward, stage 0           updates of the last stage
#     level 4     updates of stage 0
#
# The nodes of one place and one level are a task. Levels are raised above the least possible ones
# where that makes fewer tasks, which hand less over: of the parts a forward and backward pass that
# wait for different weights, or for the number of samples, are one task nevertheless.

_Dependencies: TypeAlias = Mapping[Node, Sequence[tuple[Node, bool]]]
"""For each node the nodes it waits for, and whether both can be in one task."""
_Task: TypeAlias = tuple[Place, int]
"""Place and level of a task."""


def find_levels(
    staged: StagedStep, places: Mapping[Node, Place], alone: Collection[Node] = ()
) -> dict[Node, int]:
    """Return the level of every node: above the levels of all other tasks that it needs."""
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


# Tasks: the nodes that run together, as one function, on the parts or on one device.
#
# ::
#
#     owner 0:  reads ---+                      +--> sums, update
#                        +--> parts: forward, --+
#     owner 1:  reads ---+    backward          +--> sums, update
#
# A task ends before a node that another device, all parts, or a reader of the whole tensor needs.
# Its
# level is the number of such ends before it, so a task never waits for tasks of higher levels.

_Key: TypeAlias = tuple[Place, int]
"""Place and level: nodes with the same ones are a task."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Nodes that run as one function."""

    place: Place  # Device and stage in which it runs
    level: int  # Topological level; the task needs only tasks of lower levels
    nodes: tuple[Node, ...] = ()  # Nodes in an order in which they can run
    fetches: tuple[Tensor, ...] = ()  # Tensors that other tasks, or the caller of the step, need

    @property
    def where(self) -> str:
        """The device, or the name that stands for the parts."""
        return self.place.where

    @property
    def is_parts(self) -> bool:
        """Whether it runs on every part, and not once."""
        return self.place.is_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFunction:
    """Function of a task."""

    task: Task  # Task
    builder: FunctionBuilder  # Function with its arguments and outputs
    is_stateful: bool  # Whether it reads or writes state
    is_read_only: bool  # Whether it only reads variables
    needs_samples: bool  # Whether a kernel in it fails on a part without samples
    after: frozenset[Task]  # Tasks that run before it although it reads nothing of them
    added_inside: frozenset[Tensor]  # Results that the calls of a device add up, one after another
    by_xla: bool  # Whether XLA compiles it
    obstacle: str  # Reason why XLA does not compile it although it was asked to, or an empty text


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Staged step in tasks."""

    staged: StagedStep  # Step
    tasks: tuple[Task, ...]  # Tasks in an order in which they can run
    task_of: Mapping[Node, Task]  # Task of every node that has one
    # Returns the device of a variable, by the argument that is its handle
    owner_of: Callable[[Tensor], str]
    summed: Set[Tensor]  # Partial sums that are only read as a whole
    # Nodes with outputs whose size depends on the data; empty if XLA is asked to compile nothing
    sized_by_data: Set[Node]

    @property
    def graph(self) -> Graph:
        """The nodes of the step."""
        return self.staged.sharded.graph

    @property
    def inference(self) -> Inference:
        """The sources of the symbols of sizes."""
        return self.staged.sharded.inference

    @property
    def sharding(self) -> Sharding:
        """The states of all tensors, and what the parts compute."""
        return self.staged.sharded.sharding

    @property
    def layout(self) -> Layout:
        """The replicas, stages and micro-batches."""
        return self.staged.layout

    def requests(self, node: Node) -> Iterator[tuple[Tensor, State | Numbers]]:
        """Yield every input of a node with the state that the node needs."""
        return self.staged.sharded.requests(node)


def make_tasks(staged: StagedStep, owner_of: Callable[[Tensor], str]) -> Partition:
    """Group the nodes of a step by place and level."""
    places = find_places(staged, owner_of)
    graph = staged.sharded.graph
    is_compiled = any(node.xla for node in graph)
    by_data = sizes_of_data(graph).intersection(staged.nodes) if is_compiled else frozenset[Node]()
    levels = find_levels(staged, places, alone=by_data)
    key_of: dict[Node, _Key] = {node: (places[node], levels[node]) for node in staged.nodes}
    nodes_of: dict[_Key, list[Node]] = {}
    for node, key in key_of.items():
        nodes_of.setdefault(key, []).append(node)
    nodes_of = dict(sorted(nodes_of.items(), key=lambda item: item[0][1]))
    fetches, summed = _find_fetches(staged.sharded, nodes_of, key_of)
    tasks = {
        key: Task(*key, nodes=tuple(nodes), fetches=tuple(fetches.get(key, ())))
        for key, nodes in nodes_of.items()
    }
    return Partition(
        staged=staged,
        tasks=tuple(tasks.values()),
        task_of={node: tasks[key] for node, key in key_of.items()},
        owner_of=owner_of,
        summed=summed,
        sized_by_data=by_data,
    )


def _find_fetches(
    sharded: ShardedStep, nodes_of: Mapping[_Key, Sequence[Node]], key_of: Mapping[Node, _Key]
) -> tuple[dict[_Key, dict[Tensor, None]], frozenset[Tensor]]:
    """Return the tensors that each task hands over, and the sums that are read as a whole alone."""
    fetched: dict[_Key, dict[Tensor, None]] = defaultdict(dict)
    read_in_parts: set[Tensor] = set()

    def fetch(tensor: Tensor, reader: _Key | None) -> None:
        key = key_of.get(tensor.node)
        if key is not None and key != reader:
            fetched[key][tensor] = None

    for key, nodes in nodes_of.items():
        for node in nodes:
            for tensor, request in sharded.requests(node):
                if isinstance(request, Partial) and key_of.get(tensor.node) != key:
                    read_in_parts.add(tensor)
                if not isinstance(request, Numbers) and not tensor.is_sizes:
                    fetch(tensor, key)
            for source in sharded.symbol_sources(node):
                fetch(source.tensor, key)
    for tensor in sharded.graph.outputs:
        fetch(tensor, None)
        for size in tensor.value or ():
            for name in symbols_of(size) - {"B"}:
                fetch(sharded.inference.symbols[name].tensor, None)
    states = sharded.sharding.states
    sums = {tensor for tensors in fetched.values() for tensor in tensors if states[tensor] == SUM}
    return fetched, frozenset(sums - read_in_parts)
