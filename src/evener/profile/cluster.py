"""The devices of one machine or many, and the links between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evener.errors import ProfileError

HOST_MEMORY = "host"
"""Stands for the memory of the host, which may own variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection.

    Args:
        bytes_per_second: In each direction, above 0; ``inf`` where devices share one memory.
        latency_seconds: Of one transfer, 0 or more.

    Raises:
        ProfileError: PROF-004 for a bandwidth or latency that cannot be.
    """

    bytes_per_second: float = math.inf
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not self.bytes_per_second > 0 or not 0 <= self.latency_seconds < math.inf:
            raise ProfileError(
                "PROF-004",
                f"A link of {self.bytes_per_second:g} bytes per second and "
                f"{self.latency_seconds:g} seconds of latency cannot be planned for.",
                why="The bandwidth must be above 0, and the latency 0 or more.",
                fix="Correct the link, or leave the devices behind it out.",
            )

    def seconds(self, num_bytes: float) -> float:
        """Return the time of one transfer; nothing takes no time."""
        return self.latency_seconds + num_bytes / self.bytes_per_second if num_bytes > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDevice:
    """A device that can compute.

    Args:
        name: As in a plan, such as ``"gpu:0"`` or ``"worker:1/gpu:0"``.
        type: Devices of one type compute each layer in the same time.
        memory_bytes: What a plan may use; None if it is not limited.
        machine: The number of its machine.
    """

    name: str
    type: str
    memory_bytes: int | None = None
    machine: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the devices of one machine share.

    Args:
        link: Between two of its devices.
        host_link: Between a device and the host's memory.
        host_memory_bytes: Of the host; None if it is not limited.
        host_update_bytes_per_second: At which the host reads and writes variables when it updates
            them; about the bandwidth of its memory.
        shares_link: Whether all transfers between its devices use one bus, as through the host;
            else each device has its own connection.
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
        devices: At least one, with different names.
        machines: In the order of their numbers.
        network: Between two machines; each machine has one such connection.
        name: For tables.

    Raises:
        ProfileError: PROF-005 for no devices, a name twice, or a machine that is not there.
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

    def link(self, one: int, other: int) -> Link:
        """Return the link between two devices, given by their places in `devices`."""
        machine = self.devices[one].machine
        if machine == self.devices[other].machine:
            return self.machines[machine].link
        return self.network
