"""Step split into the tasks of its layers, as if each layer were a stage on a separate device.

Nothing is emitted or run. The tasks are those of a plan with one stage per layer; their nodes tell
what a layer computes, saves and passes on.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from evener.engine.partition.build import build_task
from evener.engine.partition.tasks import Partition, Task, TaskFunction, make_tasks
from evener.engine.pipeline.layout import Layout
from evener.engine.pipeline.order import pass_of
from evener.engine.pipeline.passes import FORWARD, find_passes
from evener.engine.pipeline.scopes import Scopes
from evener.engine.pipeline.stages import find_stages
from evener.engine.pipeline.staging import stage_step
from evener.engine.sharding.sharded_step import shard_step
from evener.engine.trace.step import TracedStep
from evener.graph.nodes import Tensor
from evener.plan import Replica, Stage
from evener.profiler.chain import NUM_WANTED, Chain, find_chain
from evener.profiler.variables import LayerVariable, find_variables

_NO_LAYER = "\0"
"""Pattern of layers to recompute that matches none; it makes the partition separate the passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTasks:
    """Tasks of a layer.

    Attributes:
        forward: Tasks of the forward pass of a micro-batch, in order.
        backward: Tasks of the backward pass of a micro-batch, in order.
        once: Tasks that run once per step on the owner of the layer: its update.
    """

    forward: tuple[Task, ...]
    backward: tuple[Task, ...]
    once: tuple[Task, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStep:
    """Step split into layers.

    Attributes:
        traced: Traced step.
        chain: Chain of its layers.
        partition: Partition into tasks.
        variables: Variables with their layers.
        layers: Tasks of every layer.
        rest: Tasks that run once per step and belong to no layer, such as the loss and metrics.
    """

    traced: TracedStep
    chain: Chain
    partition: Partition
    variables: tuple[LayerVariable, ...]
    layers: tuple[LayerTasks, ...]
    rest: tuple[Task, ...]

    def build(self, task: Task) -> TaskFunction:
        """Build the function of a task, which TensorFlow may inline."""
        whole = Layout.of_devices(self.partition.layout.devices[:1])
        staged = dataclasses.replace(self.partition.staged, layout=whole)
        partition = dataclasses.replace(self.partition, staged=staged)
        return build_task(partition, task, self.traced.concrete)


@dataclass(frozen=True)
class _LayerLayout(Layout):
    """Layout of one replica with a stage for every layer, all on one device."""

    chain: Chain | None = None

    def stages_of(self, path: str) -> tuple[int | None, ...]:
        """Return the number of the layer that a path belongs to."""
        assert self.chain is not None
        return (self.chain.layer(path),)


def split_step(
    traced: TracedStep, *, device: str = "gpu:0", num_wanted: int = NUM_WANTED
) -> SplitStep:
    """Split a traced step into the tasks of its layers.

    Args:
        traced: Step, traced with layers.
        device: Device of the kind that will compute it, such as ``"cpu:0"``.
        num_wanted: Number of layers up to which nested models are replaced by their layers.
    """
    sharded = shard_step(traced)
    sharding, scopes = sharded.sharding, Scopes(traced.scopes)
    nodes = [node for node in traced.graph if node.op != "Const"]
    passes = find_passes(nodes, sharding)
    chain = find_chain(nodes, sharding, scopes, passes, num_wanted=num_wanted)
    layout = _layout(chain, device)
    stages = find_stages(nodes, sharding, layout, scopes)
    variables = tuple(find_variables(traced, nodes, chain, stages, passes))
    home = {variable.handle: variable.layer for variable in variables}

    def owner_of(tensor: Tensor) -> str:
        return _home(home.get(tensor))

    partition = make_tasks(stage_step(sharded, layout, scopes), owner_of)
    layers = [_tasks_of(partition, number) for number in range(len(chain.names))]
    known = {task for layer in layers for task in (*layer.forward, *layer.backward, *layer.once)}
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
    """Return a symbolic device that owns the variables of a layer, or of the step."""
    return "step" if layer is None else f"layer {layer}"


def _tasks_of(partition: Partition, number: int) -> LayerTasks:
    parts = [task for task in partition.tasks if task.is_parts and task.place.stages == (number,)]

    def in_forward(task: Task) -> bool:
        return pass_of([partition.staged.passes[node] for node in task.nodes]) == FORWARD

    return LayerTasks(
        forward=tuple(task for task in parts if in_forward(task)),
        backward=tuple(task for task in parts if not in_forward(task)),
        once=tuple(task for task in partition.tasks if task.where == _home(number)),
    )
