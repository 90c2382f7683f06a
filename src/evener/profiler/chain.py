"""Chain of the layers of a step: the layers that the stages of a plan may name.

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

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evener.engine.pipeline.passes import FORWARD
from evener.engine.pipeline.scopes import Scopes
from evener.engine.trace.functional import LOOPS
from evener.graph.nodes import Node, Tensor
from evener.ops.decision import Sharding
from evener.ops.registry import Trait, has_trait

WHOLE_STEP = "*"
"""Name of the only layer of a step whose layers are unknown; as a pattern it matches all layers."""

NUM_WANTED = 8
"""Nested models are replaced by their layers, the largest first, up to this number of layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Layers of a step, in the order in which samples pass through them.

    Attributes:
        names: Layer names, as the stages of a plan use them.
        layer_of: Layer number by the path of each traced layer, nested layers included.
    """

    names: tuple[str, ...]
    layer_of: Mapping[str, int]

    def layer(self, path: str) -> int | None:
        """Return the number of the layer that a path belongs to, or None if it is in no layer."""
        return 0 if len(self.names) == 1 else self.layer_of.get(path)


@dataclass(slots=True, eq=False)
class _Scope:
    """Name scope of a layer.

    Attributes:
        path: Path of the layer.
        children: Scopes of the layers called in it, by path, in call order.
        num_nodes: Number of nodes in the scope and its children.
        is_divisible: Whether only its children compute much or read weights.
        has_weights: Whether a node in the scope reads a variable.
    """

    path: str
    children: dict[str, _Scope] = field(default_factory=dict)
    num_nodes: int = 0
    is_divisible: bool = True
    has_weights: bool = False

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
    """Return the chain of a step.

    Args:
        nodes: Nodes of the step, in topological order.
        sharding: Sharding of the tensors.
        scopes: Layer scopes of the nodes.
        passes: Pass of each sharded node.
        num_wanted: Number of layers up to which nested models are replaced by their layers.
    """
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
