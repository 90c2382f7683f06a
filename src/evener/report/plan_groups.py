"""Groups of equal replicas of a plan, each drawn once in a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import Assignment, ReplicaAssignment
from evener.profile import Cluster

MOST_ROWS = 12
"""Largest number of rows of a picture; a row is a device, or several that compute the same."""

_FEW = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """Replicas that compute the same on devices of the same types.

    Args:
        numbers: Indices of the replicas among those with samples, ascending.
        replica: First of these replicas.
        devices: Names of the devices of each stage, one for each replica.
    """

    numbers: tuple[int, ...]
    replica: ReplicaAssignment
    devices: tuple[tuple[str, ...], ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The text for the devices of each stage."""
        return tuple(map(devices_label, self.devices))


def replica_groups(assignment: Assignment, cluster: Cluster) -> list[ReplicaGroup]:
    """Return the replicas in groups, in the order of the first of each.

    Args:
        assignment: Layers and samples of each device.
        cluster: The devices.
    """
    numbers: dict[object, list[int]] = {}
    for number, replica in enumerate(assignment.replicas):
        numbers.setdefault(_look(replica, cluster), []).append(number)
    return [_group(assignment, alike, cluster) for alike in numbers.values()]


def devices_label(names: Sequence[str]) -> str:
    """Return a text for devices.

    >>> devices_label(["gpu:0", "gpu:1"]), devices_label([f"gpu:{k}" for k in range(8)])
    ('gpu:0, gpu:1', 'gpu:0..gpu:7 x8')
    """
    if len(names) <= _FEW:
        return ", ".join(names)
    worker = names[0].rpartition("/")[0]
    # All are on one machine, which the first name says.
    last = names[-1].removeprefix(f"{worker}/") if worker else names[-1]
    return f"{names[0]}..{last} x{len(names)}"


def widest_label(width: int) -> int:
    """Return the largest number of columns for the device names in a line of ``width``."""
    return max(16, width * 2 // 5)


def shortened(text: str, width: int) -> str:
    """Return a text with its middle left out if it is longer than a width, at least 1.

    >>> shortened("encoder/block_11/attention", 12)
    'encode…ntion'
    """
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def _group(assignment: Assignment, numbers: Sequence[int], cluster: Cluster) -> ReplicaGroup:
    replicas = [assignment.replicas[number] for number in numbers]
    names = [[cluster.devices[span.device].name for span in replica.spans] for replica in replicas]
    return ReplicaGroup(
        numbers=tuple(numbers), replica=replicas[0], devices=tuple(zip(*names, strict=True))
    )


def _look(replica: ReplicaAssignment, cluster: Cluster) -> object:
    """Return a key that is equal for replicas that are drawn as one."""
    devices = [cluster.devices[span.device] for span in replica.spans]
    order = {span.device: None for span in replica.spans}
    return (
        (replica.samples, replica.num_micro_batches, replica.in_flight, replica.schedule),
        tuple((span.first, span.end, list(order).index(span.device)) for span in replica.spans),
        tuple(device.type for device in devices),
        # Whether each stage is in the machine of the one before it.
        tuple(device.machine == devices[0].machine for device in devices),
    )
