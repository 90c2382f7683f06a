"""A traced step split into its layers.

Their chain, their variables, the tasks of each, and which of them compute the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import tensorflow as tf

from evener.graph.nodes import Node, Tensor
from evener.graph.ops.registry import Trait, has_trait
from evener.graph.ops.states import Sharding
from evener.graph.rewrites import LOOPS
from evener.graph.trace import TracedStep
from evener.partition.build import build_task
from evener.partition.layout import Layout
from evener.partition.order import pass_of
from evener.partition.shard import shard_step
from evener.partition.stage import FORWARD, Scopes, find_passes, find_stages, stage_step
from evener.partition.tasks import Partition, StepTask, TaskFunction, make_tasks
from evener.plan import Replica, Stage

WHOLE_STEP = "*"
"""Name of the only layer of a step whose layers are unknown; as a pattern it matches all layers."""

NUM_WANTED = 8
"""Nested models are replaced by their layers, the largest first, up to this number of layers."""

_NO_LAYER = "\0"
"""Pattern of layers to recompute that matches none; it makes the partition separate the passes."""

_SYMBOL = re.compile(r"\bs\d+\b")
_NOT_COMPARED = frozenset({"_class", "_output_shapes", "container", "shared_name"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTasks:
    forward: tuple[StepTask, ...]  # Tasks of the forward pass of a micro-batch, in order.
    backward: tuple[StepTask, ...]  # Tasks of the backward pass of a micro-batch, in order.
    once: tuple[StepTask, ...]  # Tasks once per step on the owner of the layer: its update.


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStep:
    """Step split into layers, as if each were a stage on a separate device. Nothing is run."""

    traced: TracedStep
    chain: LayerChain
    partition: Partition
    variables: tuple[LayerVariable, ...]
    layers: tuple[LayerTasks, ...]
    rest: tuple[StepTask, ...]  # Tasks once per step that belong to no layer, such as the metrics.

    def build(self, task: StepTask) -> TaskFunction:
        whole = Layout.of_devices(self.partition.layout.devices[:1])
        partition = dataclasses.replace(self.partition, layout=whole)
        return build_task(partition, task, self.traced.concrete)


@dataclass(frozen=True)
class _LayerLayout(Layout):
    """Layout of one replica with a stage for every layer, all on one device."""

    chain: LayerChain | None = None

    def stages_of(self, path: str) -> tuple[int | None, ...]:
        """Return the number of the layer that a path belongs to."""
        assert self.chain is not None
        return (self.chain.layer(path),)


def split_step(
    traced: TracedStep, *, device: str = "gpu:0", num_wanted: int = NUM_WANTED
) -> SplitStep:
    """Split a step, traced with layers, into the tasks of its layers."""
    sharded = shard_step(traced)
    sharding, scopes = sharded.sharding, Scopes(traced.scopes)
    nodes = [node for node in traced.graph if node.op != "Const"]
    passes = find_passes(nodes, sharding)
    chain = find_chain(nodes, sharding, scopes, passes, num_wanted=num_wanted)
    stages = tuple(Stage(device=device, layers=(name,)) for name in chain.names)
    layout = _LayerLayout((Replica(share=1, stages=stages),), recompute=(_NO_LAYER,), chain=chain)
    stage_of = find_stages(nodes, sharding, layout, scopes)
    variables = tuple(_VariableSearch(traced, nodes, chain, stage_of, passes).variables())
    home = {variable.handle: variable.layer for variable in variables}

    def owner(layer: int | None) -> str:
        """Return a symbolic device that owns the variables of a layer, or of the step."""
        return "step" if layer is None else f"layer {layer}"

    staged = stage_step(sharded, layout, scopes)
    outputs = [tensor for node in traced.graph for tensor in node.outputs]
    handles = [tensor for tensor in outputs if tensor.dtype == tf.resource]
    owners = {handle: owner(home.get(handle)) for handle in handles}
    partition = make_tasks(staged, owners)
    layers: list[LayerTasks] = []
    for number in range(len(chain.names)):
        forward: list[StepTask] = []
        backward: list[StepTask] = []
        for task in partition.tasks:
            if task.is_parts and task.place.stages == (number,):
                is_forward = pass_of([staged.passes[node] for node in task.nodes]) == FORWARD
                (forward if is_forward else backward).append(task)
        once = tuple(task for task in partition.tasks if task.where == owner(number))
        layers.append(LayerTasks(forward=tuple(forward), backward=tuple(backward), once=once))
    known = {task for layer in layers for task in (*layer.forward, *layer.backward, *layer.once)}
    return SplitStep(
        traced=traced,
        chain=chain,
        partition=partition,
        variables=variables,
        layers=tuple(layers),
        rest=tuple(task for task in partition.tasks if task not in known),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChain:
    names: tuple[str, ...]  # Layer names, as the stages of a plan use them.
    layer_of: Mapping[str, int]  # Layer number by the path of each traced layer, nested ones too.

    def layer(self, path: str) -> int | None:
        """Return the number of the layer that a path belongs to, or None if it is in no layer."""
        return 0 if len(self.names) == 1 else self.layer_of.get(path)


@dataclass(slots=True, eq=False)
class _Scope:
    path: str
    # Scopes of the layers called in it, by path, in call order.
    children: dict[str, _Scope] = field(default_factory=dict)
    num_nodes: int = 0  # Number of nodes in the scope and its children.
    is_divisible: bool = True  # Whether only its children compute much or read weights.
    has_weights: bool = False  # Whether a node in the scope reads a variable.

    def paths(self) -> list[str]:
        return [self.path, *(path for child in self.children.values() for path in child.paths())]


def find_chain(
    nodes: Sequence[Node],
    sharding: Sharding,
    scopes: Scopes,
    passes: Mapping[Node, str],
    *,
    num_wanted: int = NUM_WANTED,
) -> LayerChain:
    """Return the chain of the layers of a step, which the stages of a plan may name.

    ::

        scopes of a trace            layers of the chain
        model
          embedding                  embedding
          backbone  (a model)        backbone, or its own layers if there are few
            block_0                  backbone/block_0
            block_1                  backbone/block_1
          head                       head
        compile_loss                 -  (computed on the device of its last input)
        adam                         -

    A step without layers is a chain of one layer.
    """
    # Losses and optimizers have scopes too, but read no weights in the forward pass.
    found = _read_scopes(nodes, sharding, scopes, passes)
    layers = [scope for scope in found if scope.has_weights]
    prefix = ""
    while len(layers) == 1 and layers[0].children and layers[0].is_divisible:
        prefix = f"{layers[0].path}/"
        layers = list(layers[0].children.values())
    while len(layers) < num_wanted:
        models = [layer for layer in layers if layer.is_divisible and len(layer.children) > 1]
        if not models:
            break
        index = layers.index(max(models, key=lambda layer: layer.num_nodes))
        layers[index : index + 1] = layers[index].children.values()
    if len(layers) < 2:
        return LayerChain(names=(WHOLE_STEP,), layer_of={})
    numbers: dict[str, int] = {}
    layer_of: dict[str, int] = {}
    for scope in layers:
        number = numbers.setdefault(scope.path.removeprefix(prefix), len(numbers))
        for path in scope.paths():
            layer_of.setdefault(path, number)
    return LayerChain(names=tuple(numbers), layer_of=layer_of)


def _read_scopes(
    nodes: Sequence[Node], sharding: Sharding, scopes: Scopes, passes: Mapping[Node, str]
) -> list[_Scope]:
    """Return the outermost scopes; calls of the same layer at the same path share a scope."""
    root = _Scope("")
    weights: set[Tensor] = set()
    for node in nodes:
        if node.op == "ReadVariableOp" or (
            node not in sharding.decisions
            and node.inputs
            and all(tensor in weights for tensor in node.inputs)
        ):
            weights.update(node.outputs)
        if passes.get(node) != FORWARD:
            continue
        around = [root]
        for _, path in scopes.layers(node):
            # Paths in the body of a loop repeat those of the enclosing scopes.
            if all(path != scope.path for scope in around):
                around.append(around[-1].children.setdefault(path, _Scope(path)))
        reads = any(t in weights or t.dtype.name == "resource" for t in node.inputs)
        for scope in around:
            scope.num_nodes += 1
            scope.has_weights |= reads
        if reads or node.op in LOOPS or has_trait(node, Trait.OF_LAYERS):
            around[-1].is_divisible = False
    return list(root.children.values())


Role = Literal["weight", "slot", "state"]
"""``weight``: trained, so trainable and written by the step. ``slot``: optimizer state: it has the
weight's name in its own, or one of the two is read where the other is written. ``state``: all the
others, such as moving means and frozen weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariable:
    handle: Tensor  # Resource argument of the step.
    name: str  # TensorFlow name.
    layer: int | None  # None if it belongs to no layer, such as the total of a metric.
    role: Role
    num_bytes: int
    shape: tuple[int, ...]
    dtype: tf.DType


class _VariableSearch:
    def __init__(
        self,
        traced: TracedStep,
        nodes: Sequence[Node],
        chain: LayerChain,
        stages: Mapping[Node, tuple[int, ...]],
        passes: Mapping[Node, str],
    ) -> None:
        self._chain = chain
        self._scopes = Scopes(traced.scopes)
        self._stages, self._passes = stages, passes
        self._users: dict[Tensor, list[Node]] = defaultdict(list)
        for node in nodes:
            for tensor in dict.fromkeys(node.inputs):
                self._users[tensor].append(node)
        by_handle = {id(variable.handle): variable for variable in traced.concrete.graph.variables}
        pairs = zip(traced.capture_inputs, traced.captures, strict=True)
        self._variables: dict[Tensor, Any] = {
            tensor: by_handle[id(capture)] for tensor, capture in pairs if id(capture) in by_handle
        }
        self._shapes = {
            handle: tuple(variable.shape.as_list()) for handle, variable in self._variables.items()
        }
        self._trained = {
            handle
            for handle, variable in self._variables.items()
            if variable.trainable and any(user.has_side_effect for user in self._users[handle])
        }

    def variables(self) -> Iterator[LayerVariable]:
        layers = {
            handle: layer
            for handle in self._variables
            if (layer := self._layer_by_use(handle)) is not None
        }
        slots = self._slots(set(layers))
        for handle, variable in self._variables.items():
            is_slot = handle in slots
            role: Role = "weight" if handle in self._trained else "state"
            yield LayerVariable(
                handle=handle,
                name=variable.name.removesuffix(":0"),
                layer=layers.get(slots[handle] if is_slot else handle),
                role="slot" if is_slot else role,
                num_bytes=variable.shape.num_elements() * variable.dtype.size,
                shape=self._shapes[handle],
                dtype=variable.dtype,
            )

    def _layer_by_use(self, handle: Tensor) -> int | None:
        """Return the first layer that uses a variable; a trained one also through its readers."""
        is_trainable, users = self._variables[handle].trainable, self._users[handle]
        if len(self._chain.names) == 1:
            return 0 if is_trainable else None
        found = [self._chain.layer(self._scopes.path(user)) for user in users]
        layers = [layer for layer in found if layer is not None]
        if not layers and is_trainable:
            read = [t for user in users if not user.has_side_effect for t in user.outputs]
            fed = [user for tensor in read for user in self._users[tensor]]
            layers = [self._stages[user][0] for user in fed if self._passes.get(user) == FORWARD]
        return min(layers, default=None)

    def _slots(self, of_layers: set[Tensor]) -> dict[Tensor, Tensor]:
        """Return the weight of every slot, by its Keras name or by the updates."""
        weights = [handle for handle in of_layers if handle in self._trained]
        # Scalars are step counters, learning rates or metric totals.
        others = [
            handle for handle in self._variables if handle not in of_layers and self._shapes[handle]
        ]
        names = {_plain_name(self._variables[weight].name): weight for weight in weights}
        by_name: dict[Tensor, Tensor] = {}
        for slot in others if len(names) == len(weights) else ():
            rest = _plain_name(self._variables[slot].name.partition("/")[2])
            fitting = [name for name in names if rest.startswith(f"{name}_")]
            if fitting:
                by_name[slot] = names[max(fitting, key=len)]
        # The nearest weight by the updates, one of the same shape first.
        nearest: dict[Tensor, tuple[bool, int, Tensor]] = {}
        for handle in [*weights, *others]:
            for other, distance in self._read_for_update(handle):
                slot, weight = (other, handle) if handle in of_layers else (handle, other)
                if slot in by_name or slot in of_layers or weight not in of_layers:
                    continue
                rank = (self._shapes[slot] != self._shapes[weight], distance)
                if slot not in nearest or rank < nearest[slot][:2]:
                    nearest[slot] = (*rank, weight)
        return {**{slot: weight for slot, (_, _, weight) in nearest.items()}, **by_name}

    def _read_for_update(self, handle: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Yield the variables that the writes of a variable depend on, and their distance."""
        writes = [write for write in self._users[handle] if write.has_side_effect]
        queue = deque((t, 1) for write in writes for t in write.inputs if t is not handle)
        seen: set[Tensor] = set()
        while queue:
            tensor, distance = queue.popleft()
            if tensor in seen:
                continue
            seen.add(tensor)
            if self._shapes.get(tensor):
                yield tensor, distance
            elif tensor.node not in self._passes:
                queue.extend((read, distance + 1) for read in tensor.node.inputs)


def _plain_name(name: str) -> str:
    return name.removesuffix(":0").replace("/", "_")


def kinds_of(split: SplitStep) -> list[str]:
    """Return a signature of every layer: those of one kind compute the same on the same shapes."""
    return [
        work_signature(split, (layer.forward, layer.backward, layer.once)) for layer in split.layers
    ]


def work_signature(split: SplitStep, groups: Sequence[Sequence[StepTask]]) -> str:
    """Return a short hash of the work of groups of tasks, with numbers instead of names."""
    shapes = {
        variable.handle: f"{variable.dtype.name}{variable.shape}" for variable in split.variables
    }
    tensors: dict[Tensor, int] = {}
    symbols: dict[str, str] = {}

    def plain(text: str) -> str:
        """Number the symbols of a text in the order of their first occurrence."""
        return _SYMBOL.sub(lambda m: symbols.setdefault(m[0], f"s{len(symbols)}"), text)

    def tensor_text(tensor: Tensor) -> str:
        """Return the number of a tensor, with its description at its first occurrence."""
        if tensor in tensors:
            return str(tensors[tensor])
        number = tensors[tensor] = len(tensors)
        if tensor.node.op == "Const":
            return f"{number} {tensor.node.attrs['value'].SerializeToString(deterministic=True)}"
        if tensor.is_sizes:
            return f"{number} sizes {tensor.value}"
        return f"{number} {tensor.dtype.name}{tensor.shape} {shapes.get(tensor, '')}"

    def node_lines(node: Node, requests: Sequence[str] = ()) -> Iterator[str]:
        inputs = [tensor_text(tensor) for tensor in node.inputs]
        yield plain(f"{node.op} {inputs} {list(requests)}")
        for name in sorted(node.attrs):
            if name not in _NOT_COMPARED and not (node.bodies and "func" in str(node.attrs[name])):
                yield f"{name}={node.attrs[name].SerializeToString(deterministic=True)}"
        for name, body in sorted(node.bodies.items()):
            yield f"body {name}"
            for inner in body:
                yield from node_lines(inner)
            yield f"returns {[tensors.get(tensor) for tensor in body.outputs]}"
        for tensor in node.outputs:
            tensors[tensor] = len(tensors)
            yield plain(f"{tensor.dtype.name}{tensor.shape}")

    text = hashlib.sha256()
    for group in groups:
        text.update(b"|")
        for task in group:
            text.update(f"task {task.place.is_parts}".encode())
            for node in task.nodes:
                requests = [str(request) for _, request in split.partition.requests(node)]
                for line in node_lines(node, requests):
                    text.update(line.encode())
            text.update(f"gives {[tensors.get(tensor) for tensor in task.fetches]}".encode())
    return text.hexdigest()[:16]
