"""The inventory of this machine: NVIDIA's library, TensorFlow and the host, joined."""

from __future__ import annotations

import os

from evener.devices.host import read_host
from evener.devices.inventory import Inventory
from evener.devices.join import join
from evener.devices.nvml import Nvml
from evener.devices.spec import spec_from
from evener.devices.tensorflow_view import read_tensorflow


def inventory(spec: str | None = None) -> Inventory:
    """Return all devices, which of them a device spec uses, and why the others are not used.

    TensorFlow's runtime is not started: `use_devices` can still be called afterwards.

    Args:
        spec: The device spec, for example ``"all"``, ``"gpu:0,gpu:1@10GiB"`` or ``"cpu:2"``;
            None for the environment's ``EVENER_DEVICES``, or ``all`` without it.

    Returns:
        The inventory.

    Raises:
        DeviceError: DEV-001 to DEV-007 if the spec cannot be read, DEV-010 if it names a GPU
            that is not there, DEV-011 if a cap is above the GPU's memory.

    Example:
        ``print(evener.inventory().to_json())``
    """
    parsed = spec_from(spec, os.environ)
    return join(parsed, Nvml().read_machine(), read_tensorflow(), read_host())
