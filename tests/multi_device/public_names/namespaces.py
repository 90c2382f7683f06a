"""The namespaces, their public names and the tables of calls."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass

import keras
import tensorflow as tf

from multi_device.public_names import (
    keras_layers,
    keras_losses,
    keras_ops,
    tf_image,
    tf_linalg,
    tf_math,
    tf_nn,
    tf_signal,
)
from multi_device.public_names.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """A module with public names.

    Attributes:
        path: The path of the module.
        module: The module.
        table: The recipe of every name that is called.
        not_called: The reason of every name that is not.
    """

    path: str
    module: types.ModuleType
    table: Mapping[str, Recipe]
    not_called: Mapping[str, str]


NAMESPACES = tuple(
    Namespace(path=path, module=module, table=table, not_called=not_called)
    for path, module, table, not_called in (
        ("tf.math", tf.math, tf_math.TABLE, tf_math.NOT_CALLED),
        ("tf.linalg", tf.linalg, tf_linalg.TABLE, tf_linalg.NOT_CALLED),
        ("tf.signal", tf.signal, tf_signal.TABLE, tf_signal.NOT_CALLED),
        ("tf.image", tf.image, tf_image.TABLE, tf_image.NOT_CALLED),
        ("tf.nn", tf.nn, tf_nn.TABLE, tf_nn.NOT_CALLED),
        ("keras.ops", keras.ops, keras_ops.TABLE, keras_ops.NOT_CALLED),
        ("keras.losses", keras.losses, keras_losses.LOSSES, keras_losses.NOT_CALLED),
        ("keras.metrics", keras.metrics, keras_losses.METRICS, keras_losses.NOT_CALLED),
        ("keras.layers", keras.layers, keras_layers.TABLE, keras_layers.NOT_CALLED),
    )
)


def public_names(module: types.ModuleType) -> list[str]:
    """Return the names of a module that can be called."""
    names = (name for name in dir(module) if not name.startswith("_"))
    return [name for name in names if callable(getattr(module, name))]


def aliases() -> dict[str, str]:
    """Return every public name that is another name of something in a table, and that name."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for space in NAMESPACES:
        for name in space.table:
            first.setdefault(id(getattr(space.module, name)), f"{space.path}.{name}")
    for space in NAMESPACES:
        for name in public_names(space.module):
            path = f"{space.path}.{name}"
            known = first.get(id(getattr(space.module, name)))
            if known is not None and known != path:
                found[path] = known
    return found


def recipes() -> dict[str, Recipe]:
    """Return the recipe of every public name that is no other name of one before."""
    others = aliases()
    return {
        path: recipe
        for space in NAMESPACES
        for name, recipe in space.table.items()
        if (path := f"{space.path}.{name}") not in others
    }


def missing() -> list[str]:
    """Return the public names of which no table says anything."""
    others = aliases()
    return [
        path
        for space in NAMESPACES
        for name in public_names(space.module)
        if (path := f"{space.path}.{name}") not in others
        if name not in space.table and name not in space.not_called
    ]
