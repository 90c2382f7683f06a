"""The inventory of devices: which exist, which are used, and why the others are not.

    names        names of devices            <-> TensorFlow's names, and kinds of devices
    spec         text                        -> DeviceSpec
    machine      driver, host and TensorFlow -> NvmlMachine, Host, TensorFlowView      seam
    reasons      these                       -> Problem           pure
    inventories  all of these                -> Inventory         and its table
    use          spec and inventory          -> UsedDevice, ...   on a runtime

The public names are loaded when they are first used. None of it imports TensorFlow before it is
called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evener.devices.inventories import Inventory, inventory
    from evener.devices.use import UsedDevice, resolve_devices, use_devices

__all__ = ["Inventory", "UsedDevice", "inventory", "resolve_devices", "use_devices"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'evener.devices' has no attribute {name!r}")
    home = "inventories" if name in ("Inventory", "inventory") else "use"
    return getattr(importlib.import_module(f"evener.devices.{home}"), name)
