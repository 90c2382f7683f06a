"""Layers inside of layers, and the layer to which each operation of a graph belongs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state


@contextlib.contextmanager
def recording_layers() -> Iterator[dict[str, str]]:
    """Record the layers whose operations are added to the current graph.

    Why: Keras opens a name scope for every call of a layer, and the names of operations begin with
    their scope; so do those of their gradients, after ``gradient_tape/``. But the name of a scope
    is not the path of its layer: a second call gets a number. There is no public hook.
    If it changes: operations cannot be assigned to layers, and the stages of a plan find no layers
    (ENG-042).

    Yields:
        The path of the layer that opened each name scope; filled while the graph is built.
    """
    scopes: dict[str, str] = {}

    def record(operation: Any) -> str:
        scope = operation.name.rpartition("/")[0]
        if scope not in scopes:
            _enter(scope, scopes)
        return operation.device

    # Device functions are called for every operation, in nested functions too.
    with tf.compat.v1.get_default_graph().device(record):
        yield scopes


def _enter(scope: str, scopes: dict[str, str]) -> None:
    """Record a name scope and its outer scopes."""
    layers: Any = global_state.get_global_attribute("name_scope_stack") or []
    names = scope.split("/") if scope else []
    depth = len(names)
    for number in range(len(layers), 0, -1):
        while depth and not names[depth - 1].startswith(layers[number - 1].name):
            depth -= 1
        if not depth:
            return
        scopes.setdefault("/".join(names[:depth]), _path(layers[:number]))
        depth -= 1


def _path(layers: Sequence[Any]) -> str:
    """Return the path of the innermost of some nested layers, as Keras writes it."""
    names: list[str] = []
    for layer in layers:
        if layer.override_parent is not None:
            names = [name for name in layer.override_parent.split("/") if name]
        names.append(layer.name)
    return "/".join(names)


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """Return a model's layers at every depth, itself included."""
    return list(model._flatten_layers(include_self=True, recursive=True))


def sublayers(layer: keras.Layer) -> list[keras.Layer]:
    """Return the layers that a layer holds itself, not those inside them.

    Why: the path of a layer leads through the layers that hold it, and stages are named by
    paths. If it changes: stages and recomputation find no layers inside of layers.
    """
    return list(getattr(layer, "_layers", ()))


def own_variables(layer: keras.Layer) -> list[Any]:
    """Return the Keras variables that a layer holds itself, with the seeds of its generators.

    Why: a layer may be pinned away from the layers inside it, and the public list joins all.
    If it changes: built layers cannot be pinned.
    """
    seeds = [generator.state for generator in layer._seed_generators]
    return [*layer._trainable_variables, *layer._non_trainable_variables, *seeds]
