"""The Keras layer to which each operation of a graph belongs.

Tests: ``tests/unit/tf_compat/test_layers.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

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
