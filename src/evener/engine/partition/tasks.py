"""Tasks: the nodes that run together, as one function, on the parts or on one device.

::

    owner 0:  reads ---+                      +--> sums, update
                       +--> parts: forward, --+
    owner 1:  reads ---+    backward          +--> sums, update

A task ends where its results are needed elsewhere: another device, all parts, or the whole of
what the parts hold. Its level is the number of such steps before it, so tasks of lower levels never
wait for those of higher ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from evener.devices.names import tf_device
from evener.engine.partition.functions import FunctionBuilder
from evener.engine.partition.homes import find_homes
from evener.engine.partition.levels import find_levels
from evener.engine.pipeline.layout import Layout, Stages
from evener.engine.pipeline.recompute import recompute
from evener.engine.pipeline.stages import WEIGHTS, Scopes, find_passes, find_stages
from evener.engine.sharding.reads import is_known_to_parts, requests_of, symbols_read
from evener.engine.trace.data_sizes import sizes_of_data
from evener.engine.trace.inference import Inference
from evener.graph.dims import BATCH, Size, symbols_of
from evener.graph.nodes import CHECKS, Graph, Node, Tensor
from evener.ops.decision import Sharding, rows_of
from evener.ops.states import REPLICATED, SUM, Numbers, Partial, State, serves

PARTS = "parts"
PARTS_WITH_SAMPLES = "parts with samples"
"""Parts without samples do not run these tasks; kept apart where others have counters of loops."""


class Place(NamedTuple):
    """Where nodes have to be to run as one function.

    Attributes:
        where: The device, or ``PARTS`` for a call on every part.
        stages: Of the parts: the stage in each replica; empty if nothing is cut.
        role: Of the parts: the pass, where it is told apart.
        by_xla: Whether it belongs to a function with ``jit_compile=True``.
        rows: Of the parts: the rows that are split. A part may have samples and none of other
            rows, and kernels that need some are not called then.
    """

    where: str
    stages: Stages = ()
    role: str = ""
    by_xla: bool = False
    rows: Size = BATCH

    @property
    def is_parts(self) -> bool:
        """Whether it is on every part, and not on one device."""
        return self.where in (PARTS, PARTS_WITH_SAMPLES)


@dataclass(slots=True, eq=False)
class Task:
    """Nodes that run as one function.

    Attributes:
        place: Where it runs.
        level: After all tasks of lower levels that it needs.
        nodes: In an order in which they can run.
        fetches: The tensors that other tasks, or the caller of the step, need of it.
    """

    place: Place
    level: int
    nodes: list[Node] = field(default_factory=list)
    fetches: list[Tensor] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The device, or what stands for the parts."""
        return self.place.where

    @property
    def is_parts(self) -> bool:
        """Whether it runs on every part, and not once."""
        return self.place.is_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFunction:
    """The function of a task.

    Attributes:
        task: The task.
        builder: The function, with its arguments and outputs.
        is_stateful: Whether it reads or writes state.
        is_read_only: Whether it only reads variables.
        needs_samples: Whether a kernel in it fails on a part without samples.
        after: The tasks that have to come before it, although it reads nothing of them.
        added_inside: The results that the calls of a device add up, one after another.
        by_xla: Whether XLA compiles it.
        obstacle: Why XLA does not compile it although it was asked to, or an empty text.
    """

    task: Task
    builder: FunctionBuilder
    is_stateful: bool
    is_read_only: bool
    needs_samples: bool
    after: frozenset[Task]
    added_inside: frozenset[Tensor]
    by_xla: bool
    obstacle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A step in tasks.

    Attributes:
        graph: The step.
        sharding: What the parts hold.
        inference: Where symbols come from.
        tasks: In an order in which they can run.
        task_of: The task of every node that has one.
        layout: The parts.
        passes: The pass of every node of the parts; empty if nothing is cut.
        waits: What a node that is computed again waits for in its task, without reading it.
        owner_of: The device of a variable, by the argument that is its handle.
        summed: The partial sums of which nothing but the sum is needed.
        sized_by_data: The nodes that give tensors whose size depends on what is in the data;
            known where XLA is asked to compile something.
    """

    graph: Graph
    sharding: Sharding
    inference: Inference
    tasks: list[Task]
    task_of: dict[Node, Task]
    layout: Layout
    passes: Mapping[Node, str]
    waits: Mapping[Node, tuple[Tensor, ...]]
    owner_of: Callable[[Tensor], str]
    summed: set[Tensor] = field(default_factory=set)
    sized_by_data: set[Node] = field(default_factory=set)

    def requests(self, node: Node) -> Iterator[tuple[Tensor, State | Numbers]]:
        """Yield every input of a node with what the node needs of it."""
        return requests_of(self.sharding, node)


def make_tasks(
    graph: Graph,
    sharding: Sharding,
    inference: Inference,
    *,
    owner_of: Callable[[Tensor], str],
    layout: Layout,
    scopes: Scopes,
) -> Partition:
    """Group the nodes of a step.

    Args:
        graph: The step.
        sharding: What the parts compute.
        inference: Where symbols come from.
        owner_of: The device of a variable, by the argument that is its handle.
        layout: The parts.
        scopes: The layers of the nodes.
    """
    needed = _needed(graph, sharding, inference)
    nodes = [node for node in graph if node in needed and node.op != "Const"]
    stages: dict[Node, Stages] = {}
    passes: dict[Node, str] = {}
    waits: dict[Node, tuple[Tensor, ...]] = {}
    roles: Collection[str] = ()
    if layout.is_scheduled:
        stages = find_stages(nodes, sharding, layout, scopes)
        weights = any(one.schedule == "zero_bubble" for one in layout.replicas)
        passes = find_passes(nodes, sharding, stages, weights=weights)
        if layout.recompute:
            nodes, waits = recompute(nodes, sharding, layout, scopes, stages, passes)
        # One function for both passes where it can be: there is less to hand over.
        roles = set(passes.values()) if layout.recompute else [WEIGHTS]
    homes = find_homes(
        nodes, sharding, owner_of=owner_of, default=layout.device(0, layout.first_stages)
    )
    has_lists = any(
        decision.bodies or any(t.dtype == tf.variant for t in node.outputs)
        for node, decision in sharding.decisions.items()
    )

    compiles = frozenset(tf_device(name) for name in layout.devices)

    def place(node: Node) -> Place:
        decision = sharding.decisions.get(node)
        if decision is None:
            home = homes.get(node, "")
            # What is on the host beside other devices is small, or text, which XLA does not know.
            return Place(home, by_xla=home in compiles and _is_for_xla(node))
        where = PARTS_WITH_SAMPLES if has_lists and decision.needs_samples else PARTS
        role = passes.get(node, "")
        role = role if role in roles else ""
        rows = rows_of(decision)
        return Place(where, stages.get(node, ()), role, by_xla=_is_for_xla(node), rows=rows)

    def dependencies(node: Node) -> Iterator[tuple[Node, bool]]:
        return _dependencies(node, place, sharding, inference)

    levels = find_levels(nodes, layout, stages, passes, waits, dependencies)
    tasks: dict[tuple[Place, int], Task] = {}
    task_of: dict[Node, Task] = {}
    for node in nodes:
        key = (place(node), levels[node])
        task = tasks.setdefault(key, Task(*key))
        task.nodes.append(node)
        task_of[node] = task
    partition = Partition(
        graph=graph,
        sharding=sharding,
        inference=inference,
        tasks=sorted(tasks.values(), key=lambda task: task.level),
        task_of=task_of,
        layout=layout,
        passes=passes,
        waits=waits,
        owner_of=owner_of,
        sized_by_data=sizes_of_data(graph) if any(node.xla for node in graph) else set(),
    )
    _find_fetches(partition)
    return partition


def _is_for_xla(node: Node) -> bool:
    """Return whether XLA is asked to compile a node and can.

    What reads variables before anything changes them hands them over; compiled by XLA it would copy
    them. XLA knows no text.
    """
    if not node.xla:
        return False
    if node.op == "ReadVariableOp":
        return any(before.has_side_effect for before in node.after)
    return not any(tensor.dtype == tf.string for tensor in (*node.inputs, *node.outputs))


def _needed(graph: Graph, sharding: Sharding, inference: Inference) -> set[Node]:
    needed: set[Node] = set()
    arguments = {t.node for t in graph.inputs}
    stack = [node for node in graph if node.has_side_effect or node.op in CHECKS]
    for tensor in graph.outputs:
        stack.extend(_sources(tensor, REPLICATED, inference))
    while stack:
        node = stack.pop()
        if node in needed or node in arguments:
            continue
        needed.add(node)
        for tensor, request in requests_of(sharding, node):
            stack.extend(_sources(tensor, request, inference))
        for name in symbols_read(sharding, node, inference.symbols):
            source = inference.symbols[name].tensor
            if source.node is not node:
                stack.append(source.node)
    return needed


def _sources(tensor: Tensor, request: State | Numbers, inference: Inference) -> list[Node]:
    if isinstance(request, Numbers):
        return []
    if tensor.is_sizes:
        names = {s for size in tensor.value or () for s in symbols_of(size)} - {"B"}
        return [inference.symbols[name].tensor.node for name in names]
    return [tensor.node]


def _dependencies(
    node: Node, place: Callable[[Node], Place], sharding: Sharding, inference: Inference
) -> Iterator[tuple[Node, bool]]:
    """Yield what a node waits for, and whether both can be in one task."""
    where = place(node)
    for tensor, request in requests_of(sharding, node):
        if isinstance(request, Numbers):
            continue
        if tensor.is_sizes:
            continue
        is_same = place(tensor.node) == where and serves(sharding.states[tensor], request)
        yield tensor.node, is_same
    for name in symbols_read(sharding, node, inference.symbols):
        source = inference.symbols[name]
        if source.tensor.node is not node:
            held = sharding.states[source.tensor]
            is_same = place(source.tensor.node) == where and is_known_to_parts(source, held)
            yield source.tensor.node, is_same
    for before in node.after:
        yield before, place(before) == where


def _find_fetches(partition: Partition) -> None:
    fetched: dict[Task, dict[Tensor, None]] = defaultdict(dict)
    symbols = partition.inference.symbols

    def fetch(tensor: Tensor, by: Task | None) -> None:
        task = partition.task_of.get(tensor.node)
        if task is not None and task is not by:
            fetched[task][tensor] = None

    for task in partition.tasks:
        for node in task.nodes:
            for tensor, request in partition.requests(node):
                if not isinstance(request, Numbers) and not tensor.is_sizes:
                    fetch(tensor, task)
            for name in symbols_read(partition.sharding, node, symbols):
                fetch(symbols[name].tensor, task)
    for tensor in partition.graph.outputs:
        fetch(tensor, None)
        for size in tensor.value or ():
            for name in symbols_of(size) - {"B"}:
                fetch(symbols[name].tensor, None)
    for task, tensors in fetched.items():
        task.fetches = list(tensors)
        partition.summed.update(t for t in tensors if partition.sharding.states[t] == SUM)
    for task in partition.tasks:
        for node in task.nodes:
            for tensor, request in partition.requests(node):
                if isinstance(request, Partial) and partition.task_of.get(tensor.node) is not task:
                    partition.summed.discard(tensor)
