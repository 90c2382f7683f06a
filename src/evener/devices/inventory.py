"""The inventory: every device, whether it will be used, and if not, why not."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from evener.devices.nvml import LinkKind
from evener.devices.problem import Problem

DeviceKind = Literal["gpu", "cpu"]
Use = Literal["compute", "host", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of the machine; None where nobody says.

    Args:
        name: ``"gpu:1"`` as TensorFlow numbers the physical GPUs, ``"cpu:0"``; a GPU that
            TensorFlow does not see has the driver's number: ``"nvidia:1"``.
        kind: ``"gpu"`` or ``"cpu"``.
        product: What it is called in the shop.
        use: ``"compute"`` if it takes part, ``"host"`` for a CPU that feeds GPUs, else
            ``"none"``.
        reason: Why it does not compute; None if it does.
        memory_total_bytes: All its memory.
        memory_free_bytes: The memory that nobody uses now.
        caps_bytes: The caps of the spec; more than one if it is cut into several devices.
        compute_capability: Major and minor number.
        num_multiprocessors: How many streaming multiprocessors.
        num_cores: Of a CPU: how many cores this process may use.
        uuid: The driver's name for it.
        nvml_index: The driver's number of it, as in nvidia-smi.
        pci_bus_id: Its place on the PCI bus.
    """

    name: str
    kind: DeviceKind
    product: str | None = None
    use: Use
    reason: Problem | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    caps_bytes: tuple[int, ...] = ()
    compute_capability: tuple[int, int] | None = None
    num_multiprocessors: int | None = None
    num_cores: int | None = None
    uuid: str | None = None
    nvml_index: int | None = None
    pci_bus_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The best way between two GPUs.

    Args:
        devices: The names of the two.
        kind: ``"nvlink"``, ``"pcie"`` (below one host bridge) or ``"host"`` (across).
        count: How many NVLinks; 1 for the other kinds.
    """

    devices: tuple[str, str]
    kind: LinkKind
    count: int = 1

    def __str__(self) -> str:
        """Return the link in a few characters, such as ``"nvlink x4"``."""
        return f"{self.kind} x{self.count}" if self.count > 1 else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What is here, and what of it a device spec uses.

    Args:
        devices: All devices: GPUs by number, then the CPU or its stand-ins.
        links: The ways between the GPUs, each pair once.
        problems: What is wrong with the machine as a whole.
        fallback: Why fewer devices are used than were asked for; None if all are.
        spec: The device spec, in its own language.
        driver_version: Of NVIDIA's driver.
        cuda_driver_version: The newest CUDA that the driver knows.
        tensorflow_version: Of the installed TensorFlow.
        cuda_version: The CUDA that TensorFlow was built for.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    problems: tuple[Problem, ...] = ()
    fallback: Problem | None = None
    spec: str = "all"
    driver_version: str | None = None
    cuda_driver_version: tuple[int, int] | None = None
    tensorflow_version: str | None = None
    cuda_version: str | None = None

    @property
    def used(self) -> tuple[Device, ...]:
        """The devices that compute."""
        return tuple(device for device in self.devices if device.use == "compute")

    def to_dict(self) -> dict[str, Any]:
        """Return the inventory as plain dicts, lists, strings and numbers."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Return the inventory as one JSON object; sizes are bytes."""
        return json.dumps(self.to_dict(), indent=2)
