"""The layers of a step as a chain: those that the stages of a plan may name.

::

    scopes of a trace            layers of the chain
    model
      embedding                  embedding
      backbone  (a model)        backbone, or its own layers where there are few
        block_0                  backbone/block_0
        block_1                  backbone/block_1
      head                       head
    compile_loss                 -  (computed where the last of its inputs is)
    adam                         -

A step without layers is a chain of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evener.engine.pipeline.stages import FORWARD, Scopes
from evener.engine.sharding.decision import Sharding
from evener.engine.trace.graph import Node, Tensor

WHOLE_STEP = "*"
"""The name of the one layer of a step in which no layers are known; as a pattern, all layers."""

NUM_WANTED = 8
"""Models inside a model are divided until there are so many layers, the largest first."""

HEAVY = frozenset(
    {
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Conv1D",
        "Conv2D",
        "Conv3D",
        "CudnnRNNV3",
        "DepthwiseConv2dNative",
        "Einsum",
        "MatMul",
        "StatelessWhile",
        "While",
        "XlaEinsum",
    }
)
"""Operations that make a layer more than a container of other layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The layers of a step, in the order in which samples pass through them.

    Attributes:
        names: As stages of a plan name them.
        layer_of: The number of the layer for the path of every layer in it, as it was traced.
    """

    names: tuple[str, ...]
    layer_of: Mapping[str, int]

    def layer(self, path: str) -> int | None:
        """Return the number of the layer that a path leads to, or None if it is in no layer."""
        return 0 if len(self.names) == 1 else self.layer_of.get(path)


@dataclass(slots=True, eq=False)
class _Scope:
    """A scope of names that a layer opened.

    Attributes:
        path: Of the layer.
        children: By the paths of layers that were called in it, in order.
        num_nodes: How many nodes are in it, and in what is in it.
        is_divisible: Whether nothing but layers in it computes much or has weights.
        has_weights: Whether something in it reads a variable.
    """

    path: str
    children: dict[str, _Scope] = field(default_factory=dict)
    num_nodes: int = 0
    is_divisible: bool = True
    has_weights: bool = False

    def paths(self) -> list[str]:
        """Return the paths of the layer and of all layers in it."""
        return [self.path, *(path for one in self.children.values() for path in one.paths())]


def find_chain(
    nodes: Sequence[Node],
    sharding: Sharding,
    scopes: Scopes,
    passes: Mapping[Node, str],
    *,
    num_wanted: int = NUM_WANTED,
) -> Chain:
    """Return the layers of a step.

    Args:
        nodes: Of the step, in an order in which they can run.
        sharding: What the parts compute.
        scopes: The layers of the nodes.
        passes: The pass of every node that the parts compute.
        num_wanted: Models inside the model are divided until there are so many layers.
    """
    found = _read_scopes(nodes, sharding, scopes, passes)
    # Losses and optimizers open scopes too, but read no weights for the forward pass.
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
    """Return the outermost scopes; calls of one layer in one place are one scope."""
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
            # Names in the body of a loop begin again with those around it.
            if all(path != one.path for one in around):
                around.append(around[-1].children.setdefault(path, _Scope(path)))
        reads = any(t in weights or t.dtype.name == "resource" for t in node.inputs)
        for scope in around:
            scope.num_nodes += 1
            scope.has_weights |= reads
        if reads or node.op in HEAVY:
            around[-1].is_divisible = False
    return list(root.children.values())


def _divide(layers: Sequence[_Scope], num_wanted: int) -> list[_Scope]:
    """Put the layers of models inside the model in the place of these models."""
    layers = list(layers)
    while len(layers) < num_wanted:
        models = [one for one in layers if one.is_divisible and len(one.children) > 1]
        if not models:
            break
        place = layers.index(max(models, key=lambda one: one.num_nodes))
        layers[place : place + 1] = layers[place].children.values()
    return layers
