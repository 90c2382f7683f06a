"""A step in layers: the tasks of each layer, as if each were a stage on a device of its own.

Nothing is emitted, and nothing runs: the tasks are those that a plan with one stage per layer has,
and their nodes say what a layer computes, keeps and hands on.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from evener.engine.partition.build import build_task
from evener.engine.partition.reads import merge_reads
from evener.engine.partition.tasks import Partition, Task, TaskFunction, make_tasks
from evener.engine.pipeline.layout import Layout
from evener.engine.pipeline.order import pass_of
from evener.engine.pipeline.stages import FORWARD, Scopes, find_passes, find_stages
from evener.engine.sharding.propagate import propagate
from evener.engine.sharding.states import Sharded
from evener.engine.trace.graph import Tensor
from evener.engine.trace.step import TracedStep
from evener.plan import Replica, Stage
from evener.profiler.chain import NUM_WANTED, Chain, find_chain
from evener.profiler.variables import LayerVariable, find_variables

_NO_LAYER = "\0"
"""A pattern of layers to compute again, which tells passes apart and matches none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTasks:
    """What is computed of a layer.

    Attributes:
        forward: Tasks of the forward pass of a micro-batch, in order.
        backward: Tasks of the backward pass of a micro-batch, in order.
        once: Tasks that run once per step where the variables of the layer are: its update.
    """

    forward: tuple[Task, ...]
    backward: tuple[Task, ...]
    once: tuple[Task, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStep:
    """A step in layers.

    Attributes:
        traced: The step.
        chain: Its layers.
        partition: Its tasks.
        variables: With the layers that they belong to.
        layers: The tasks of every layer.
        rest: Tasks that run once per step and belong to no layer, such as the loss and metrics.
    """

    traced: TracedStep
    chain: Chain
    partition: Partition
    variables: tuple[LayerVariable, ...]
    layers: tuple[LayerTasks, ...]
    rest: tuple[Task, ...]

    def build(self, task: Task) -> TaskFunction:
        """Make the function of a task, which TensorFlow may put in the place of its calls."""
        whole = Layout.of_devices(self.partition.layout.devices[:1])
        return build_task(
            dataclasses.replace(self.partition, layout=whole), task, self.traced.concrete
        )


@dataclass(frozen=True)
class _LayerLayout(Layout):
    """One replica with a stage for every layer, all on one device."""

    chain: Chain | None = None

    def stages_of(self, path: str) -> tuple[int | None, ...]:
        """Return the number of the layer that a path leads to."""
        assert self.chain is not None
        return (self.chain.layer(path),)


def split_step(
    traced: TracedStep, *, device: str = "gpu:0", num_wanted: int = NUM_WANTED
) -> SplitStep:
    """Split a traced step into the tasks of its layers.

    Args:
        traced: The step, traced with layers.
        device: The kind of device that is to compute it, such as ``"cpu:0"``.
        num_wanted: Models inside the model are divided until there are so many layers.
    """
    graph = traced.graph
    merge_reads(graph)
    states = {
        tensor: Sharded(axis)
        for tensor, axis in zip(graph.inputs, traced.batch_axes, strict=False)
        if axis is not None
    }
    sharding = propagate(graph, states, traced.inference.symbols)
    scopes = Scopes(traced.scopes)
    nodes = [node for node in graph if node.op != "Const"]
    passes = find_passes(nodes, sharding, {}, weights=False)
    chain = find_chain(nodes, sharding, scopes, passes, num_wanted=num_wanted)
    layout = _layout(chain, device)
    stages = find_stages(nodes, sharding, layout, scopes)
    variables = tuple(find_variables(traced, nodes, chain, stages, passes))
    home = {one.handle: one.layer for one in variables}

    def owner_of(tensor: Tensor) -> str:
        return _home(home.get(tensor))

    partition = make_tasks(
        graph, sharding, traced.inference, owner_of=owner_of, layout=layout, scopes=scopes
    )
    layers = [_tasks_of(partition, number) for number in range(len(chain.names))]
    known = {task for one in layers for task in (*one.forward, *one.backward, *one.once)}
    return SplitStep(
        traced=traced,
        chain=chain,
        partition=partition,
        variables=variables,
        layers=tuple(layers),
        rest=tuple(task for task in partition.tasks if task not in known),
    )


def _layout(chain: Chain, device: str) -> _LayerLayout:
    patterns = [(name,) for name in chain.names]
    stages = tuple(Stage(device=device, layers=layers) for layers in patterns)
    return _LayerLayout((Replica(share=1, stages=stages),), recompute=(_NO_LAYER,), chain=chain)


def _home(layer: int | None) -> str:
    """Return what stands for the device that owns the variables of a layer, or of the step."""
    return "step" if layer is None else f"layer {layer}"


def _tasks_of(partition: Partition, number: int) -> LayerTasks:
    parts = [task for task in partition.tasks if task.is_parts and task.place.stages == (number,)]

    def in_forward(task: Task) -> bool:
        return pass_of([partition.passes[node] for node in task.nodes]) == FORWARD

    return LayerTasks(
        forward=tuple(task for task in parts if in_forward(task)),
        backward=tuple(task for task in parts if not in_forward(task)),
        once=tuple(task for task in partition.tasks if task.where == _home(number)),
    )
