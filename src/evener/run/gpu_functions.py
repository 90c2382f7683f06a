"""Functions, modules and strategies of TensorFlow that name GPUs, as patches."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private.patches import Patch

REPLACED = {
    "device": "a GPU name selects its stand-in",
    "config.list_physical_devices": "lists the stand-ins as GPUs",
    "config.list_logical_devices": "lists the visible stand-ins as GPUs",
    "config.get_visible_devices": "lists the visible stand-ins as GPUs",
    "config.set_visible_devices": "hides stand-ins from the lists, and renumbers the others",
    "config.get_logical_device_configuration": "returns the configured value",
    "config.set_logical_device_configuration": "gives one stand-in several logical names",
    "config.experimental.list_physical_devices": "the same, under its old name",
    "config.experimental.list_logical_devices": "the same, under its old name",
    "config.experimental.get_visible_devices": "the same, under its old name",
    "config.experimental.set_visible_devices": "the same, under its old name",
    "config.experimental.get_virtual_device_configuration": "the same, under its old name",
    "config.experimental.set_virtual_device_configuration": "the same, under its old name",
    "config.experimental.get_memory_growth": "returns the configured value",
    "config.experimental.set_memory_growth": "is accepted; host memory always grows",
    "config.experimental.get_device_details": "returns the name of the stand-in",
    "config.experimental.get_memory_info": "returns the statistics of the stand-in",
    "config.experimental.get_memory_usage": "returns the statistics of the stand-in",
    "config.experimental.reset_memory_stats": "resets the statistics of the stand-in",
    "test.is_gpu_available": "returns True",
    "test.gpu_device_name": "returns the first GPU",
    "data.experimental.copy_to_device": "a GPU name selects its stand-in",
    "data.experimental.prefetch_to_device": "a GPU name selects its stand-in",
}
"""The functions that are replaced in `tf`, `tf.compat.v1` and `tf.compat.v2`, and their effect."""

STRATEGIES = {
    "MirroredStrategy": ("devices",),
    "OneDeviceStrategy": ("device",),
    "CentralStorageStrategy": ("compute_devices", "parameter_device"),
}
"""The strategies of ``tf.distribute`` that take devices, and the names of these arguments."""

_IMPORTED_AS = (
    *("config", "config.experimental", "test", "data", "data.experimental"),
    *("compat", "compat.v1", "compat.v2"),
)


def attribute(module: Any, path: str) -> Any:
    """Return an attribute at any depth; the module for an empty path."""
    return functools.reduce(getattr, filter(None, path.split(".")), module)


def _targets(path: str, apis: Sequence[str] = ("", "compat.v1.", "compat.v2.")) -> Iterator[str]:
    """Yield the public modules that have a function or class, as targets of a patch."""
    folder, _, name = path.rpartition(".")
    for api in apis:
        if hasattr(attribute(tf, f"{api}{folder}"), name):
            yield f"tensorflow:{api}{path}"


def _each_class_once(name: str) -> Iterator[str]:
    apis = ("distribute.", "distribute.experimental.", "compat.v1.distribute.")
    targets = {
        attribute(tf, f"{api}{name}"): target for api in apis for target in _targets(name, [api])
    }
    yield from (f"{target}.__init__" for target in targets.values())


FUNCTIONS = Patch(
    "functions that name GPUs",
    *(target for path in REPLACED for target in _targets(path)),
    why="Programs for GPUs find and name them by these functions.",
    if_it_changes="Programs for GPUs do not run where there are none.",
)
IMPORTED = Patch(
    "modules that name GPUs",
    *(f"sys:modules[tensorflow.{name}]" for name in _IMPORTED_AS),
    why="`import tensorflow.config` would make a second module, without the replacements.",
    if_it_changes=FUNCTIONS.if_it_changes,
    is_new=True,
)
PIN = Patch(
    "evener.pin in scripts",
    "evener:pin",
    why="A GPU name selects its stand-in there too.",
    if_it_changes=FUNCTIONS.if_it_changes,
)
STRATEGY_DEVICES = {
    name: Patch(
        f"devices of {name}",
        *_each_class_once(name),
        why="A GPU name selects its stand-in there too, and so does the default, all GPUs.",
        if_it_changes="Strategies of TensorFlow train on one device where there is no GPU.",
    )
    for name in STRATEGIES
}
