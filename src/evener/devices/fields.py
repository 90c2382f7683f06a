"""Devices, links, and the fields of an inventory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evener.devices.nvml import LinkKind
from evener.devices.problem import Problem

DeviceKind = Literal["gpu", "cpu"]
Use = Literal["compute", "host", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of the machine; None where a value is unknown.

    Args:
        name: ``"gpu:1"`` as TensorFlow numbers the physical GPUs, ``"cpu:0"``; a GPU that
            TensorFlow does not see has the driver's number: ``"nvidia:1"``.
        kind: ``"gpu"`` or ``"cpu"``.
        product: The product name.
        use: ``"compute"`` if it computes, ``"host"`` for a CPU that only prepares the input of
            GPUs, else ``"none"``.
        reason: Problem that keeps it from computing; None if it computes.
        memory_total_bytes: Its memory.
        memory_free_bytes: Its free memory.
        caps_bytes: Memory caps of the spec, in bytes; several if it is split into several devices.
        compute_capability: Major and minor number.
        num_multiprocessors: Number of streaming multiprocessors.
        num_cores: Number of cores of a CPU that this process may use.
        uuid: Its UUID in the driver.
        nvml_index: Its index in the driver, as in nvidia-smi.
        pci_bus_id: Its address on the PCI bus.
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
    """The fastest connection of two GPUs.

    Args:
        devices: Names of the two GPUs.
        kind: ``"nvlink"``, ``"pcie"`` (below one host bridge) or ``"host"`` (across).
        count: Number of NVLinks; 1 for the other kinds.
    """

    devices: tuple[str, str]
    kind: LinkKind
    count: int = 1

    def __str__(self) -> str:
        """Return the link in a few characters, such as ``"nvlink x4"``."""
        return f"{self.kind} x{self.count}" if self.count > 1 else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryFields:
    """Fields of an `Inventory`, which documents them."""

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
