"""The forward pass as one graph, with the layer that made each operation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCall:
    """One call of a layer while the graph was made.

    Attributes:
        path: Names of the layers from the model down to this one, joined by ``/``.
        layer: The layer.
        begin: Number of operations in the graph before the call.
        end: Number of operations after it.
        outer: Position of the call inside which it happened, or None.
        inner_graph: Whether it happened in the body of a loop or of another function, whose
            operations are not in the graph.
    """

    path: str
    layer: keras.Layer
    begin: int
    end: int
    outer: int | None
    inner_graph: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A traced forward pass.

    Attributes:
        graph: Holds the operations; more may be added to it.
        num_operations: How many of them are the forward pass.
        inputs: Placeholders of the arguments, flat.
        outputs: What the function returned, tensors of the graph.
        calls: The calls of layers, in the order in which they began.
        captured: Pairs of an outer tensor and its placeholder in the graph.
    """

    graph: tf.Graph
    num_operations: int
    inputs: tuple[tf.Tensor, ...]
    outputs: Any
    calls: tuple[LayerCall, ...]
    captured: tuple[tuple[Any, tf.Tensor], ...] = field(repr=False)


def trace(model: keras.Model, function: Callable[..., Any], specs: Sequence[Any]) -> Trace:
    """Trace a function that calls a model.

    Args:
        model: Its layers' calls are recorded.
        function: Pure; called once with symbolic tensors.
        specs: A nest of `tf.TensorSpec` for each argument.
    """
    seen: dict[str, Any] = {}

    def body(*args: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        with _recording(model, graph) as calls:
            outputs = function(*args)
        seen.update(inputs=flat(args), outputs=outputs, calls=calls)
        return flat(outputs)

    concrete = tf.function(body, autograph=False).get_concrete_function(*specs)
    return Trace(
        graph=concrete.graph,
        num_operations=len(concrete.graph.get_operations()),
        inputs=tuple(seen["inputs"]),
        outputs=seen["outputs"],
        calls=tuple(seen["calls"]),
        captured=tuple(concrete.graph.captures),
    )


def flat(nest: Any) -> list[tf.Tensor]:
    """Return the tensors of a nest, those of sparse and ragged ones included, without None."""
    leaves = tf.nest.flatten(nest, expand_composites=True)
    return [leaf for leaf in leaves if leaf is not None]


def layer_paths(model: keras.Model) -> dict[int, str]:
    """Return the path of every layer below a model, by the layer's identity.

    A layer that is found at several places has the path of the first, the least deep.
    """
    paths: dict[int, str] = {id(model): ""}
    waiting: list[tuple[keras.Layer, str]] = [(model, "")]
    while waiting:
        layer, path = waiting.pop(0)
        for inner in _tf_private.sublayers(layer):
            if id(inner) not in paths:
                paths[id(inner)] = f"{path}/{inner.name}" if path else inner.name
                waiting.append((inner, paths[id(inner)]))
    return paths


@contextlib.contextmanager
def _recording(model: keras.Model, graph: tf.Graph) -> Iterator[list[LayerCall]]:
    """Record every call of a layer below the model."""
    paths = layer_paths(model)
    calls: list[Any] = []
    running: list[int] = []
    call = keras.Layer.__call__

    def recorded(self: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        if self is model:
            return call(self, *args, **kwargs)
        begin, position = len(graph.get_operations()), len(calls)
        inner_graph = tf.compat.v1.get_default_graph() is not graph
        outer = running[-1] if running else None
        calls.append(None)
        running.append(position)
        try:
            return call(self, *args, **kwargs)
        finally:
            running.pop()
            calls[position] = LayerCall(
                path=paths.get(id(self)) or str(self.name),
                layer=self,
                begin=begin,
                end=len(graph.get_operations()),
                outer=outer,
                inner_graph=inner_graph,
            )

    keras.Layer.__call__ = recorded
    try:
        yield calls
    finally:
        keras.Layer.__call__ = call
