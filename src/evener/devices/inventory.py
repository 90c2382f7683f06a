"""The inventory: every device, whether it is used, and if not, why."""

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
class Inventory:
    """The devices of the machine, and which of them a device spec uses.

    Args:
        devices: All devices: GPUs by number, then the CPU or its stand-ins.
        links: The connections of the GPUs, each pair once.
        problems: Problems of the whole machine.
        fallback: Problem for which fewer devices are used than were requested; None if all are.
        spec: The device spec as text.
        driver_version: Version of NVIDIA's driver.
        cuda_driver_version: The newest CUDA that the driver supports.
        tensorflow_version: Version of the installed TensorFlow.
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

    def __str__(self) -> str:
        """Return the inventory as a plain text table."""
        from evener.devices.table import print_inventory
        from evener.terminal import WIDTH, text_of

        return text_of(lambda console: print_inventory(self, console), WIDTH)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        from evener.terminal import html_of

        return html_of(str(self))
