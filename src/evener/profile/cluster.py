"""Devices of one or more machines, and the links between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evener.errors import ProfileError

HOST_MEMORY = "host"
"""Name of the host memory, which may own variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Link between devices, or between a device and the host.

    Args:
        bytes_per_second: Bandwidth in each direction, above 0; ``inf`` if devices share memory.
        latency_seconds: Latency of one transfer in seconds, 0 or more.

    Raises:
        ProfileError: PROF-004 for an impossible bandwidth or latency.
    """

    bytes_per_second: float = math.inf
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if not self.bytes_per_second > 0 or not 0 <= self.latency_seconds < math.inf:
            raise ProfileError(
                "PROF-004",
                f"A link of {self.bytes_per_second:g} bytes per second and "
                f"{self.latency_seconds:g} seconds of latency cannot be planned for.",
                why="The bandwidth must be above 0, and the latency 0 or more.",
                fix="Correct the link, or leave the devices behind it out.",
            )

    def seconds(self, num_bytes: float) -> float:
        """Return the seconds of one transfer; 0 for no bytes."""
        return self.latency_seconds + num_bytes / self.bytes_per_second if num_bytes > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDevice:
    """Device of a cluster.

    Args:
        name: Device name, such as ``"gpu:0"`` or ``"worker:1/gpu:0"``.
        type: Type of the device; devices of one type compute each layer in the same time.
        memory_bytes: Memory that a plan may use; None if it is unlimited.
        machine: Number of its machine, from 0.
    """

    name: str
    type: str
    memory_bytes: int | None = None
    machine: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Machine of a cluster.

    Args:
        link: Link between two of its devices.
        host_link: Link between a device and host memory.
        host_memory_bytes: Memory of the host; None if it is unlimited.
        host_update_bytes_per_second: Bandwidth of the host when it updates variables, reads and
            writes together; about its memory bandwidth.
        shares_link: Whether all transfers between its devices share one bus, as through the host;
            otherwise each device has its own link.
    """

    link: Link = Link()
    host_link: Link = Link()
    host_memory_bytes: int | None = None
    host_update_bytes_per_second: float = 2e10
    shares_link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices, machines and the network between them.

    Args:
        devices: Devices, at least one, with different names.
        machines: Machines, in the order of their numbers.
        network: Link between two machines; each machine has one.
        name: Name of the cluster, for tables.

    Raises:
        ProfileError: PROF-005 for no devices, a duplicate name, or an unknown machine.
    """

    devices: tuple[ClusterDevice, ...]
    machines: tuple[Machine, ...] = (Machine(),)
    network: Link = Link()
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse a cluster that contradicts itself."""
        names = [device.name for device in self.devices]
        problem = None
        if not names:
            problem = "It has no devices"
        elif len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            problem = f"The device {twice!r} is there twice"
        else:
            for device in self.devices:
                if not 0 <= device.machine < len(self.machines):
                    problem = f"{device.name} is in machine {device.machine}, which is not there"
        if problem is not None:
            raise ProfileError(
                "PROF-005",
                f"The cluster {self.name!r} cannot be planned for.",
                why=f"{problem}.",
                fix="Correct its description.",
            )

    def link(self, device: int, other: int) -> Link:
        """Return the link between two devices, given by their indices in `devices`."""
        machine = self.devices[device].machine
        if machine == self.devices[other].machine:
            return self.machines[machine].link
        return self.network
