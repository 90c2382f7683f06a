"""Layers of nodes, found by the scopes of names that layers open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from evener.engine.pipeline.layout import Layout
from evener.errors import EngineError, did_you_mean, listed
from evener.graph.nodes import Node
from evener.plan.layer_paths import matches, parts_of_path

_GRADIENTS = ("gradient_tape/", "gradients/")


class Scopes:
    """Scopes of names, with the layers that opened them.

    Args:
        paths: Path of the layer that opened each scope.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths

    def layers(self, node: Node) -> Iterable[tuple[str, str]]:
        """Yield the scopes and the paths of the layers around a node, the outermost first.

        The node of a gradient has the layers of the node that was differentiated.
        """
        names = _without_gradients(_name(node)).split("/")[:-1]
        for depth in range(1, len(names) + 1):
            scope = "/".join(names[:depth])
            if scope in self._paths:
                yield scope, self._paths[scope]

    def path(self, node: Node) -> str:
        """Return the path of the innermost layer around a node, or an empty string."""
        return max(self.layers(node), default=("", ""), key=lambda layer: len(layer[0]))[1]

    def region(self, node: Node, patterns: Sequence[str]) -> str:
        """Return the scope of the outermost layer around a node that matches, or nothing."""
        return next((s for s, path in self.layers(node) if matches(path, patterns)), "")

    def check(self, layout: Layout, variables: Iterable[str]) -> None:
        """Refuse patterns of a plan that name no layer, if a layer has no stage because of them.

        A pattern may be for a layer that another step calls, or that a model of this program does
        not have: nothing is wrong as long as every layer with weights has a stage.

        Args:
            layout: Layout with the patterns.
            variables: Paths of the variables of the program.

        Raises:
            EngineError: ENG-042 with the layers that are nearest.
        """
        called = set(self._paths.values())
        with_weights = {path.rpartition("/")[0] for path in variables}
        known = {part for path in called | with_weights for part in parts_of_path(path)}
        staged = [replica for replica in layout.replicas if len(replica.stages) > 1]
        stages = [p for replica in staged for stage in replica.stages for p in stage.layers]
        left_out = sorted(p for p in called & with_weights if not matches(p, stages))
        for field, patterns, names in (
            ("A stage", stages, left_out),
            ("recompute", layout.recompute, sorted(called)),
        ):
            for pattern in patterns:
                if names and not any(fnmatchcase(part, pattern) for part in known):
                    raise _no_such_layer(field, pattern, names)


def is_gradient(node: Node) -> bool:
    """Return whether a tape made a node, for the gradient of another."""
    return any(prefix in _name(node) for prefix in _GRADIENTS)


def _name(node: Node) -> str:
    return node.source[1] if node.source is not None else node.name


def _without_gradients(name: str) -> str:
    while found := next((prefix for prefix in _GRADIENTS if prefix in name), None):
        name = name.partition(found)[2]
    return name


def _no_such_layer(field: str, pattern: str, names: Sequence[str]) -> EngineError:
    layers = listed([repr(name) for name in names], 12)
    return EngineError(
        "ENG-042",
        f"{field} names {pattern!r}, but there is no such layer.",
        why=f"Layers that it could be: {layers}.{did_you_mean(pattern, names)}",
        fix="Write the names of layers as `model.summary()` shows them, with / before a layer "
        "inside a layer.",
    )
