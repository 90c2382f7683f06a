"""From a sharded step to a staged one: layers, stages, passes, recomputation.

    node                              stage
    of a layer                        the layer's
    of a layer's gradient             the layer's
    of samples alone: labels, counts  the earliest among its readers
    other                             the latest among its inputs

    forward     x ── layer ──► y
    backward    gradient of y ──► gradient of x, which another stage may wait for
    weights     gradient of y ──► gradient of the weights, which no other stage waits for

Stages are a matter of speed: a node computes the same in every stage.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from evener.errors import EngineError, did_you_mean, listed
from evener.graph.nodes import Node, Tensor
from evener.graph.ops.states import Sharding
from evener.partition.layout import Layout, Stages
from evener.partition.shard import ShardedStep
from evener.plan.parts import matches, parts_of_path

FORWARD, BACKWARD = "forward", "backward"
_GRADIENTS = ("gradient_tape/", "gradients/")


class Scopes:
    """Scopes of names, with the layers that opened them."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths

    def layers(self, node: Node) -> Iterable[tuple[str, str]]:
        """Yield the scopes and the paths of the layers around a node, the outermost first.

        The node of a gradient has the layers of the node that was differentiated.
        """
        name = _name(node)
        while prefix := next((prefix for prefix in _GRADIENTS if prefix in name), None):
            name = name.partition(prefix)[2]
        names = name.split("/")[:-1]
        for depth in range(1, len(names) + 1):
            scope = "/".join(names[:depth])
            if scope in self._paths:
                yield scope, self._paths[scope]

    def path(self, node: Node) -> str:
        return max(self.layers(node), default=("", ""), key=lambda layer: len(layer[0]))[1]

    def region(self, node: Node, patterns: Sequence[str]) -> str:
        """Return the scope of the outermost layer around a node that matches, or nothing."""
        return next((s for s, path in self.layers(node) if matches(path, patterns)), "")

    def check(self, layout: Layout, variables: Iterable[str]) -> None:
        """Refuse patterns of a plan that name no layer, if a layer has no stage because of them.

        A pattern may be for a layer that another step calls, or that a model of this program does
        not have: nothing is wrong as long as every layer with weights has a stage.
        """
        called = set(self._paths.values())
        with_weights = {path.rpartition("/")[0] for path in variables}
        known = {part for path in called | with_weights for part in parts_of_path(path)}
        staged = [replica for replica in layout.replicas if len(replica.stages) > 1]
        stages = [p for replica in staged for stage in replica.stages for p in stage.layers]
        left_out = sorted(p for p in called & with_weights if not matches(p, stages))
        for part_name, patterns, names in (
            ("A stage", stages, left_out),
            ("recompute", layout.recompute, sorted(called)),
        ):
            for pattern in patterns:
                if names and not any(fnmatchcase(part, pattern) for part in known):
                    layers = listed([repr(name) for name in names], 12)
                    raise EngineError(
                        "ENG-042",
                        f"{part_name} names {pattern!r}, but there is no such layer.",
                        why=f"Layers that it could be: {layers}.{did_you_mean(pattern, names)}",
                        fix="Write the names of layers as `model.summary()` shows them, with / "
                        "before a layer inside a layer.",
                    )


def is_gradient(node: Node) -> bool:
    """Return whether a tape made a node, for the gradient of another."""
    return any(prefix in _name(node) for prefix in _GRADIENTS)


def _name(node: Node) -> str:
    return node.source[1] if node.source is not None else node.name


def find_passes(nodes: Sequence[Node], sharding: Sharding) -> dict[Node, str]:
    passes: dict[Node, str] = {}
    for node in nodes:
        if node in sharding.decisions:
            # Loops of the forward pass fill the lists that their gradients name.
            of_tape = node.op != "EmptyTensorList" and is_gradient(node)
            after = any(passes.get(tensor.node) == BACKWARD for tensor in node.inputs)
            passes[node] = BACKWARD if of_tape or after else FORWARD
    return passes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedStep(ShardedStep):
    """Sharded step whose nodes and states include those that are recomputed."""

    layout: Layout  # Replicas, stages and micro-batches
    # Stage and pass of each node of the parts; empty without a schedule
    stages: Mapping[Node, Stages]
    passes: Mapping[Node, str]
    # Tensors that a recomputed node waits for without reading them
    gates: Mapping[Node, tuple[Tensor, ...]] = field(default_factory=dict)


def find_stages(
    nodes: Sequence[Node], sharding: Sharding, layout: Layout, scopes: Scopes
) -> dict[Node, Stages]:
    """Return the stage of every node that the parts compute."""
    stages: dict[Node, Stages] = {}
    stages_of = functools.cache(layout.stages_of)
    of_no_layer: list[Node] = []
    for node in nodes:
        if node not in sharding.decisions:
            continue
        own = stages_of(scopes.path(node))
        before = [stages[t.node] for t in node.inputs if t.node in stages]
        latest = map(max, zip(*before, strict=True)) if before else layout.first_stages
        pairs = zip(own, latest, strict=True)
        stages[node] = tuple(late if mine is None else mine for mine, late in pairs)
        if own == stages_of(""):
            of_no_layer.append(node)
    _move_to_readers(of_no_layer, stages)
    return stages


def _move_to_readers(of_no_layer: Sequence[Node], stages: dict[Node, Stages]) -> None:
    """Move nodes that depend on samples alone to the first stage that reads them.

    Otherwise labels would cross all stages, and a loss would wait for the first one.
    """
    free: set[Node] = set()
    for node in of_no_layer:
        if all(t.node in free for t in node.inputs if t.node in stages):
            free.add(node)
    readers: dict[Node, list[Node]] = defaultdict(list)
    for node in stages:
        for tensor in node.inputs:
            if tensor.node in free:
                readers[tensor.node].append(node)
    for node in reversed(of_no_layer):
        if readers[node]:
            earliest = map(min, zip(*(stages[reader] for reader in readers[node]), strict=True))
            stages[node] = tuple(earliest)


def _recompute(staged: StagedStep, scopes: Scopes) -> StagedStep:
    """Return the step with copies of layers: activations are computed anew instead of saved.

    ::

        forward     x ── layer ──────────► y                    only x is saved
        backward    x ── copy of layer ──► gradient of the layer
                             ^ gate: the gradient of y

    Nodes that draw random numbers or keep state are never copied: their results are saved. A copy
    waits for the gradient that its layer receives, so that the activations of a single layer are in
    memory at a time.
    """
    sharding = staged.sharding
    regions: dict[Node, str] = {}
    for node in staged.nodes:
        if staged.passes.get(node) == FORWARD and not node.is_stateful:
            region = scopes.region(node, staged.layout.recompute)
            if region:
                regions[node] = region
    nodes: list[Node] = []
    stages, passes = dict(staged.stages), dict(staged.passes)
    gates: dict[Node, tuple[Tensor, ...]] = {}
    gates_of_regions: dict[tuple[str, Stages], tuple[Tensor, ...]] = {}
    copies: dict[tuple[Node, Stages], Node] = {}  # One for each stage that reads it

    def copied(tensor: Tensor, stage: Stages) -> Tensor:
        """Return the copy of a tensor of a recomputed layer; append the nodes that are new."""
        node = tensor.node
        if node not in regions:
            return tensor
        region = regions[node]
        if (node, stage) not in copies:
            inputs = [copied(t, stage) if regions.get(t.node) == region else t for t in node.inputs]
            new = copies[node, stage] = _copy(node, inputs, sharding)
            stages[new], passes[new] = stage, BACKWARD
            gates[new] = gates_of_regions[region, stage]
            nodes.append(new)
        return copies[node, stage].outputs[tensor.index]

    for node in staged.nodes:
        if staged.passes.get(node, FORWARD) != FORWARD:
            stage = stages[node]
            # A stage recomputes only its own layers: activations of other stages are saved.
            own = [t for t in node.inputs if stages.get(t.node) == stage]
            arrived = tuple(t for t in node.inputs if passes.get(t.node) == BACKWARD)
            for tensor in own:
                if tensor.node in regions:
                    # The inputs of the first consumer cannot depend on the recomputed layer.
                    gates_of_regions.setdefault((regions[tensor.node], stage), arrived)
            node.inputs = [copied(t, stage) if t in own else t for t in node.inputs]
        nodes.append(node)
    return dataclasses.replace(staged, nodes=nodes, stages=stages, passes=passes, gates=gates)


def _copy(node: Node, inputs: list[Tensor], sharding: Sharding) -> Node:
    copied = copy.copy(node)
    copied.name, copied.inputs, copied.after = f"{node.name}/recompute", inputs, frozenset()
    copied.outputs = tuple(map(copy.copy, node.outputs))
    sharding.decisions[copied] = sharding.decisions[node]
    for old, new in zip(node.outputs, copied.outputs, strict=True):
        new.node, sharding.states[new] = copied, sharding.states[old]
    return copied


def stage_step(sharded: ShardedStep, layout: Layout, scopes: Scopes) -> StagedStep:
    """Give every node that the parts compute a stage and a pass, if the layout has a schedule."""
    nodes, sharding = sharded.nodes, sharded.sharding
    staged = StagedStep(
        graph=sharded.graph,
        inference=sharded.inference,
        sharding=sharding,
        nodes=nodes,
        layout=layout,
        stages=find_stages(nodes, sharding, layout, scopes) if layout.is_scheduled else {},
        passes=find_passes(nodes, sharding) if layout.is_scheduled else {},
    )
    return _recompute(staged, scopes) if layout.recompute else staged
