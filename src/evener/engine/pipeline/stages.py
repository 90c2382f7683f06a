"""In which stage the nodes of a step are computed, and in which pass.

::

    node                              its stage
    of a layer                        the layer's
    of a layer's gradient             the layer's
    of samples alone: labels, counts  the earliest among those that read it
    anything else                     the latest among its inputs

Stages are a matter of speed: whichever stage a node is in, it computes the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from evener.engine.pipeline.layout import Layout, Stages
from evener.errors import EngineError, did_you_mean, listed
from evener.graph.nodes import Node
from evener.ops.decision import Sharding
from evener.plan.layer_paths import matches, parts_of_path

_GRADIENTS = ("gradient_tape/", "gradients/")

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"


class Scopes:
    """Finds the layer of a node by its name.

    Args:
        paths: The path of the layer that opened each scope of names.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths

    def layers(self, node: Node) -> Iterable[tuple[str, str]]:
        """Yield the scopes and the paths of the layers around a node, the outermost first.

        For the node of a gradient: of what it is the gradient of.
        """
        names = _without_gradients(_name(node)).split("/")[:-1]
        for depth in range(1, len(names) + 1):
            scope = "/".join(names[:depth])
            if scope in self._paths:
                yield scope, self._paths[scope]

    def path(self, node: Node) -> str:
        """Return the path of the innermost layer around a node, or an empty string."""
        return max(self.layers(node), default=("", ""), key=lambda one: len(one[0]))[1]

    def region(self, node: Node, patterns: Sequence[str]) -> str:
        """Return the scope of the outermost layer around a node that matches, or nothing."""
        return next((s for s, path in self.layers(node) if matches(path, patterns)), "")

    def check(self, layout: Layout, variables: Iterable[str]) -> None:
        """Refuse patterns of a plan that name no layer, where a layer is left out for it.

        A pattern may be for a layer that another step calls, or that a model does not have in
        this program: then nothing is wrong as long as every layer with weights has a stage.

        Args:
            layout: With the patterns.
            variables: Paths of the variables of the program.

        Raises:
            EngineError: ENG-042 with the layers that are nearest.
        """
        called = set(self._paths.values())
        with_weights = {path.rpartition("/")[0] for path in variables}
        known = {part for path in called | with_weights for part in parts_of_path(path)}
        staged = [one for one in layout.replicas if len(one.stages) > 1]
        stages = [p for one in staged for stage in one.stages for p in stage.layers]
        left_out = sorted(p for p in called & with_weights if not matches(p, stages))
        for place, patterns, names in (
            ("A stage", stages, left_out),
            ("recompute", layout.recompute, sorted(called)),
        ):
            for pattern in patterns:
                if names and not any(fnmatchcase(part, pattern) for part in known):
                    raise _no_such_layer(place, pattern, names)


def find_stages(
    nodes: Sequence[Node], sharding: Sharding, layout: Layout, scopes: Scopes
) -> dict[Node, Stages]:
    """Return the stage of every node that the parts compute.

    Args:
        nodes: In an order in which they can run.
        sharding: What the parts compute.
        layout: The stages.
        scopes: The layers of the nodes.
    """
    stages: dict[Node, Stages] = {}
    known: dict[str, tuple[int | None, ...]] = {}
    of_nothing = layout.stages_of("")
    of_no_layer: list[Node] = []
    for node in nodes:
        if node not in sharding.decisions:
            continue
        path = scopes.path(node)
        own = known.setdefault(path, layout.stages_of(path))
        before = [stages[t.node] for t in node.inputs if t.node in stages]
        latest = map(max, zip(*before, strict=True)) if before else layout.first_stages
        pairs = zip(own, latest, strict=True)
        stages[node] = tuple(late if mine is None else mine for mine, late in pairs)
        if own == of_nothing:
            of_no_layer.append(node)
    _move_to_readers(of_no_layer, stages)
    return stages


def _move_to_readers(of_no_layer: Sequence[Node], stages: dict[Node, Stages]) -> None:
    """Move what depends on samples alone to the first stage that reads it.

    Labels would cross all stages else, and a loss would wait for the first one.

    Args:
        of_no_layer: Nodes of no layer, in an order in which they can run.
        stages: Of all nodes of the parts; changed.
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
            earliest = map(min, zip(*(stages[one] for one in readers[node]), strict=True))
            stages[node] = tuple(earliest)


def find_passes(
    nodes: Sequence[Node], sharding: Sharding, stages: Mapping[Node, Stages], *, weights: bool
) -> dict[Node, str]:
    """Return the pass of every node that the parts compute: forward, backward, weights.

    Args:
        nodes: In an order in which they can run.
        sharding: What the parts compute.
        stages: Of the nodes.
        weights: Whether the gradients of weights are told apart: what no other stage waits for.
    """
    passes: dict[Node, str] = {}
    for node in nodes:
        if node in sharding.decisions:
            # Loops of the forward pass fill the lists that their gradients name.
            is_list = node.op == "EmptyTensorList"
            is_gradient = not is_list and any(name in _name(node) for name in _GRADIENTS)
            after = any(passes.get(t.node) == BACKWARD for t in node.inputs)
            passes[node] = BACKWARD if is_gradient or after else FORWARD
    if weights:
        needed: set[Node] = set()
        for node in reversed(nodes):
            if node not in passes:
                continue
            for tensor in node.inputs:
                if tensor.node in passes and (
                    node in needed or stages[tensor.node] != stages[node]
                ):
                    needed.add(tensor.node)
        for node, name in passes.items():
            if name == BACKWARD and node not in needed:
                passes[node] = WEIGHTS
    return passes


def _name(node: Node) -> str:
    return node.source[1] if node.source is not None else node.name


def _without_gradients(name: str) -> str:
    while found := next((prefix for prefix in _GRADIENTS if prefix in name), None):
        name = name.partition(found)[2]
    return name


def _no_such_layer(place: str, pattern: str, names: Sequence[str]) -> EngineError:
    layers = listed([repr(name) for name in names], 12)
    return EngineError(
        "ENG-042",
        f"{place} names {pattern!r}, but there is no such layer.",
        why=f"Layers that it could be: {layers}.{did_you_mean(pattern, names)}",
        fix="Write the names of layers as `model.summary()` shows them, with / before a layer "
        "inside a layer.",
    )
