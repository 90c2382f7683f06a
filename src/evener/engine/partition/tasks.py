"""Tasks: the nodes that run together, as one function, on the parts or on one device.

::

    owner 0:  reads ---+                      +--> sums, update
                       +--> parts: forward, --+
    owner 1:  reads ---+    backward          +--> sums, update

A task ends before a node that another device, all parts, or a reader of the whole tensor needs. Its
level is the number of such ends before it, so a task never waits for tasks of higher levels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from evener.engine.partition.functions import FunctionBuilder
from evener.engine.partition.levels import find_levels
from evener.engine.partition.places import Place, find_places
from evener.engine.pipeline.layout import Layout
from evener.engine.pipeline.staged_step import StagedStep
from evener.engine.sharding.sharded_step import ShardedStep
from evener.engine.trace.data_sizes import sizes_of_data
from evener.engine.trace.inference import Inference
from evener.graph.dims import symbols_of
from evener.graph.nodes import Graph, Node, Tensor
from evener.ops.decision import Sharding
from evener.ops.states import SUM, Numbers, Partial, State

_Key: TypeAlias = tuple[Place, int]
"""Place and level: nodes with the same ones are a task."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Nodes that run as one function.

    Attributes:
        place: Device and stage in which it runs.
        level: Topological level; the task needs only tasks of lower levels.
        nodes: Nodes in an order in which they can run.
        fetches: Tensors that other tasks, or the caller of the step, need.
    """

    place: Place
    level: int
    nodes: tuple[Node, ...] = ()
    fetches: tuple[Tensor, ...] = ()

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
    """Function of a task.

    Attributes:
        task: Task.
        builder: Function with its arguments and outputs.
        is_stateful: Whether it reads or writes state.
        is_read_only: Whether it only reads variables.
        needs_samples: Whether a kernel in it fails on a part without samples.
        after: Tasks that run before it although it reads nothing of them.
        added_inside: Results that the calls of a device add up, one after another.
        by_xla: Whether XLA compiles it.
        obstacle: Reason why XLA does not compile it although it was asked to, or an empty text.
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
    """Staged step in tasks.

    Attributes:
        staged: Step.
        tasks: Tasks in an order in which they can run.
        task_of: Task of every node that has one.
        owner_of: Returns the device of a variable, by the argument that is its handle.
        summed: Partial sums that are only read as a whole.
        sized_by_data: Nodes with outputs whose size depends on the data; empty if XLA is asked to
            compile nothing.
    """

    staged: StagedStep
    tasks: tuple[Task, ...]
    task_of: Mapping[Node, Task]
    owner_of: Callable[[Tensor], str]
    summed: Set[Tensor]
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
    """Group the nodes of a step by place and level.

    Args:
        staged: Step.
        owner_of: Returns the device of a variable, by the argument that is its handle.
    """
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
