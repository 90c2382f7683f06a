"""A traced step split into its layers.

Their chain, their variables, the tasks of each, and which of them compute the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import tensorflow as tf

from evener.graph.nodes import Graph, Node, Tensor
from evener.graph.ops.registry import Trait, has_trait
from evener.graph.ops.states import Sharding
from evener.graph.rewrites import LOOPS
from evener.graph.trace import TracedStep
from evener.partition.build import build_task
from evener.partition.layout import Layout
from evener.partition.order import pass_of
from evener.partition.shard import shard_step
from evener.partition.stage import FORWARD, Scopes, find_passes, find_stages, stage_step
from evener.partition.tasks import Partition, Task, TaskFunction, make_tasks
from evener.plan import Replica, Stage

# Chain of the layers of a step: the layers that the stages of a plan may name.
#
# ::
#
#     scopes of a trace            layers of the chain
#     model
#       embedding                  embedding
#       backbone  (a model)        backbone, or its own layers if there are few
#         block_0                  backbone/block_0
#         block_1                  backbone/block_1
#       head                       head
#     compile_loss                 -  (computed on the device of its last input)
#     adam                         -
#
# A step without layers is a chain of one layer.

WHOLE_STEP = "*"
"""Name of the only layer of a step whose layers are unknown; as a pattern it matches all layers."""

NUM_WANTED = 8
"""Nested models are replaced by their layers, the largest first, up to this number of layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Layers of a step, in the order in which samples pass through them."""

    names: tuple[str, ...]  # Layer names, as the stages of a plan use them
    # Layer number by the path of each traced layer, nested layers included
    layer_of: Mapping[str, int]

    def layer(self, path: str) -> int | None:
        """Return the number of the layer that a path belongs to, or None if it is in no layer."""
        return 0 if len(self.names) == 1 else self.layer_of.get(path)


@dataclass(slots=True, eq=False)
class _Scope:
    """Name scope of a layer."""

    path: str  # Path of the layer
    # Scopes of the layers called in it, by path, in call order
    children: dict[str, _Scope] = field(default_factory=dict)
    num_nodes: int = 0  # Number of nodes in the scope and its children
    is_divisible: bool = True  # Whether only its children compute much or read weights
    has_weights: bool = False  # Whether a node in the scope reads a variable

    def paths(self) -> list[str]:
        """Return the paths of the layer and of all layers in it."""
        return [self.path, *(path for child in self.children.values() for path in child.paths())]


def find_chain(
    nodes: Sequence[Node],
    sharding: Sharding,
    scopes: Scopes,
    passes: Mapping[Node, str],
    *,
    num_wanted: int = NUM_WANTED,
) -> Chain:
    """Return the chain of a step."""
    found = _read_scopes(nodes, sharding, scopes, passes)
    # Losses and optimizers have scopes too, but read no weights in the forward pass.
    layers = [scope for scope in found if scope.has_weights]
    prefix = ""
    while len(layers) == 1 and layers[0].children and layers[0].is_divisible:
        prefix = f"{layers[0].path}/"
        layers = list(layers[0].children.values())
    layers = _divide(layers, num_wanted)
    if len(layers) < 2:
        return Chain(names=(WHOLE_STEP,), layer_of={})
    names: dict[str, None] = {}
    layer_of: dict[str, int] = {}
    for scope in layers:
        names.setdefault(scope.path.removeprefix(prefix))
        for path in scope.paths():
            layer_of.setdefault(path, list(names).index(scope.path.removeprefix(prefix)))
    return Chain(names=tuple(names), layer_of=layer_of)


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


def _divide(layers: Sequence[_Scope], num_wanted: int) -> list[_Scope]:
    """Replace nested models by their layers, the largest first."""
    layers = list(layers)
    while len(layers) < num_wanted:
        models = [layer for layer in layers if layer.is_divisible and len(layer.children) > 1]
        if not models:
            break
        index = layers.index(max(models, key=lambda layer: layer.num_nodes))
        layers[index : index + 1] = layers[index].children.values()
    return layers


# Layers and roles of the variables of a step.
#
# ::
#
#     weight   trained: trainable, and the step writes it
#     slot     optimizer state: its name has the weight's name, or one update reads the other
# variable
#     state    everything else, such as moving means and frozen weights

Role = Literal["weight", "slot", "state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariable:
    """Variable that a step uses."""

    handle: Tensor  # Resource argument of the step
    name: str  # TensorFlow name
    # Number of its layer; None if it belongs to no layer, such as the total of a metric
    layer: int | None
    role: Role  # Role of the variable in its layer
    num_bytes: int  # Bytes of its value
    shape: tuple[int, ...]  # Shape of its value
    dtype: tf.DType  # Dtype of its value


def find_variables(
    traced: TracedStep,
    nodes: Sequence[Node],
    chain: Chain,
    stages: Mapping[Node, tuple[int, ...]],
    passes: Mapping[Node, str],
) -> list[LayerVariable]:
    """Return the variables of a step, in the order in which it captures them."""
    return list(_Reader(traced, nodes, chain, stages, passes).read())


class _Reader:
    """Search for the layers of variables by their users."""

    def __init__(
        self,
        traced: TracedStep,
        nodes: Sequence[Node],
        chain: Chain,
        stages: Mapping[Node, tuple[int, ...]],
        passes: Mapping[Node, str],
    ) -> None:
        self._traced = traced
        self._chain = chain
        self._scopes = Scopes(traced.scopes)
        self._stages, self._passes = stages, passes
        self._users: dict[Tensor, list[Node]] = {}
        for node in nodes:
            for tensor in dict.fromkeys(node.inputs):
                self._users.setdefault(tensor, []).append(node)
        by_handle = {id(variable.handle): variable for variable in traced.concrete.graph.variables}
        pairs = zip(traced.capture_inputs, traced.captures, strict=True)
        self._variables: dict[Tensor, Any] = {
            tensor: by_handle[id(capture)] for tensor, capture in pairs if id(capture) in by_handle
        }
        self._layers: dict[Tensor, int] = {}
        self._nearest: dict[Tensor, Tensor] = {}

    def read(self) -> Iterator[LayerVariable]:
        """Yield all variables."""
        for handle in self._variables:
            layer = self._layer_by_use(handle)
            if layer is not None:
                self._layers[handle] = layer
        of_layers = set(self._layers)
        slots = self._slots(of_layers)
        self._layers.update((slot, self._layers[weight]) for slot, weight in slots.items())
        for handle, variable in self._variables.items():
            layer = self._layers.get(handle)
            role: Role = "state"
            if layer is not None and handle not in of_layers:
                role = "slot"
            elif self._is_trained(handle):
                role = "weight"
            yield LayerVariable(
                handle=handle,
                name=variable.name.removesuffix(":0"),
                layer=layer,
                role=role,
                num_bytes=variable.shape.num_elements() * variable.dtype.size,
                shape=self._shape(handle),
                dtype=variable.dtype,
            )

    def _using(self, handle: Tensor) -> list[Node]:
        return self._users.get(handle, [])

    def _layer_by_use(self, handle: Tensor) -> int | None:
        """Return the first layer that uses a variable; a trained one also through its readers."""
        if len(self._chain.names) == 1:
            return 0 if self._variables[handle].trainable else None
        layers = [self._chain.layer(self._scopes.path(user)) for user in self._using(handle)]
        layers = [layer for layer in layers if layer is not None]
        if not layers and self._variables[handle].trainable:
            readers = [reader for reader in self._using(handle) if not reader.has_side_effect]
            fed = [
                user
                for reader in readers
                for t in reader.outputs
                for user in self._users.get(t, [])
            ]
            layers = [self._stages[user][0] for user in fed if self._passes.get(user) == FORWARD]
        return min(layers, default=None)

    def _slots(self, of_layers: set[Tensor]) -> dict[Tensor, Tensor]:
        """Return the weight of every slot, by its Keras name or by the updates."""
        weights = [handle for handle in of_layers if self._is_trained(handle)]
        # Scalars are step counters, learning rates or metric totals.
        others = [
            handle for handle in self._variables if handle not in of_layers and self._shape(handle)
        ]
        names = {_plain(self._variables[weight].name): weight for weight in weights}
        are_names_unique = len(names) == len(weights)
        found: dict[Tensor, Tensor] = {}
        near: dict[Tensor, tuple[bool, int]] = {}
        for slot in others:
            rest = _plain(self._variables[slot].name.partition("/")[2])
            fitting = [name for name in names if are_names_unique and rest.startswith(f"{name}_")]
            if fitting:
                found[slot] = names[max(fitting, key=len)]
        for handle in [*weights, *others]:
            for other, distance in self._read_for_update(handle):
                slot, weight = (other, handle) if handle in of_layers else (handle, other)
                if slot in found or slot in of_layers or weight not in of_layers:
                    continue
                rank = (self._shape(slot) != self._shape(weight), distance)
                if slot not in near or rank < near[slot]:
                    near[slot] = rank
                    self._nearest[slot] = weight
        return {**{slot: self._nearest[slot] for slot in near}, **found}

    def _read_for_update(self, handle: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Yield the variables that the writes of a variable depend on, and their distance."""
        writes = [write for write in self._using(handle) if write.has_side_effect]
        queue = deque((t, 1) for write in writes for t in write.inputs if t is not handle)
        seen: set[Tensor] = set()
        while queue:
            tensor, distance = queue.popleft()
            if tensor in seen:
                continue
            seen.add(tensor)
            if tensor in self._variables and self._shape(tensor):
                yield tensor, distance
            elif tensor.node not in self._passes:
                queue.extend((read, distance + 1) for read in tensor.node.inputs)

    def _shape(self, handle: Tensor) -> tuple[int, ...]:
        return tuple(self._variables[handle].shape.as_list())

    def _is_trained(self, handle: Tensor) -> bool:
        is_written = any(user.has_side_effect for user in self._using(handle))
        return is_written and self._variables[handle].trainable


def _plain(name: str) -> str:
    return name.removesuffix(":0").replace("/", "_")


# Step split into the tasks of its layers, as if each layer were a stage on a separate device.
#
# Nothing is emitted or run. The tasks are those of a plan with one stage per layer; their nodes
# tell
# what a layer computes, saves and passes on.

_NO_LAYER = "\0"
"""Pattern of layers to recompute that matches none; it makes the partition separate the passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTasks:
    """Tasks of a layer."""

    forward: tuple[Task, ...]  # Tasks of the forward pass of a micro-batch, in order
    backward: tuple[Task, ...]  # Tasks of the backward pass of a micro-batch, in order
    once: tuple[Task, ...]  # Tasks that run once per step on the owner of the layer: its update


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStep:
    """Step split into layers."""

    traced: TracedStep  # Traced step
    chain: Chain  # Chain of its layers
    partition: Partition  # Partition into tasks
    variables: tuple[LayerVariable, ...]  # Variables with their layers
    layers: tuple[LayerTasks, ...]  # Tasks of every layer
    # Tasks that run once per step and belong to no layer, such as the loss and metrics
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
    """Split a traced step into the tasks of its layers."""
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


# Kinds of layers: layers of one kind compute the same on tensors of the same shapes.
#
# Layers of one kind are measured once. Names and the values of weights are ignored.

_SYMBOL = re.compile(r"\bs\d+\b")
_NOT_COMPARED = frozenset({"_class", "_output_shapes", "container", "shared_name"})


def kinds_of(split: SplitStep) -> list[str]:
    """Return for every layer a signature that is equal for layers of one kind."""
    shapes = _shapes(split)
    return [
        _Signature(split, shapes).of((layer.forward, layer.backward, layer.once))
        for layer in split.layers
    ]


def kind_of_rest(split: SplitStep) -> str:
    """Return a signature that is equal for steps with the same work outside their layers."""
    return _Signature(split, _shapes(split)).of((split.rest,))


def _shapes(split: SplitStep) -> dict[Tensor, str]:
    return {
        variable.handle: f"{variable.dtype.name}{variable.shape}" for variable in split.variables
    }


class _Signature:
    """Signature of the work of a layer, with numbers instead of names."""

    def __init__(self, split: SplitStep, shapes: dict[Tensor, str]) -> None:
        self._split = split
        self._shapes = shapes
        self._tensors: dict[Tensor, int] = {}
        self._symbols: dict[str, str] = {}

    def of(self, groups: Iterable[Sequence[Task]]) -> str:
        """Return the signature of groups of tasks, as a short hash."""
        text = hashlib.sha256()
        for group in groups:
            text.update(b"|")
            for task in group:
                for line in self._task(task):
                    text.update(line.encode())
        return text.hexdigest()[:16]

    def _task(self, task: Task) -> Iterator[str]:
        yield f"task {task.place.is_parts}"
        for node in task.nodes:
            requests = [str(request) for _, request in self._split.partition.requests(node)]
            yield from self._node(node, requests)
        yield f"gives {[self._tensors.get(tensor) for tensor in task.fetches]}"

    def _node(self, node: Node, requests: Sequence[str] = ()) -> Iterator[str]:
        inputs = [self._tensor(tensor) for tensor in node.inputs]
        yield self._plain(f"{node.op} {inputs} {list(requests)}")
        for name in sorted(node.attrs):
            if name not in _NOT_COMPARED and not (node.bodies and "func" in str(node.attrs[name])):
                yield f"{name}={node.attrs[name].SerializeToString(deterministic=True)}"
        for name, body in sorted(node.bodies.items()):
            yield f"body {name}"
            yield from self._graph(body)
        for tensor in node.outputs:
            self._tensors[tensor] = len(self._tensors)
            yield self._plain(f"{tensor.dtype.name}{tensor.shape}")

    def _graph(self, graph: Graph) -> Iterator[str]:
        for node in graph:
            yield from self._node(node)
        yield f"returns {[self._tensors.get(tensor) for tensor in graph.outputs]}"

    def _tensor(self, tensor: Tensor) -> str:
        """Return the number of a tensor, with its description at its first occurrence."""
        if tensor in self._tensors:
            return str(self._tensors[tensor])
        self._tensors[tensor] = len(self._tensors)
        number = self._tensors[tensor]
        if tensor.node.op == "Const":
            return f"{number} {tensor.node.attrs['value'].SerializeToString(deterministic=True)}"
        if tensor.is_sizes:
            return f"{number} sizes {tensor.value}"
        return f"{number} {tensor.dtype.name}{tensor.shape} {self._shapes.get(tensor, '')}"

    def _plain(self, text: str) -> str:
        """Number the symbols of a text in the order of their first occurrence."""
        return _SYMBOL.sub(lambda m: self._symbols.setdefault(m[0], f"s{len(self._symbols)}"), text)
