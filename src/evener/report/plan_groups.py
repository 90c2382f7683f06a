"""Replicas of a plan that are alike, so that a picture shows them once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import Assignment, ReplicaAssignment
from evener.profile import Cluster

MOST_ROWS = 12
"""Devices, or groups of them, that are drawn."""

_FEW = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """Replicas that compute the same on devices of the same types.

    Args:
        numbers: The places of the replicas among those with samples, in order.
        replica: The first of them.
        devices: For each stage the names of its devices, one for each replica.
    """

    numbers: tuple[int, ...]
    replica: ReplicaAssignment
    devices: tuple[tuple[str, ...], ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """For each stage the text for its devices."""
        return tuple(map(devices_label, self.devices))


def replica_groups(assignment: Assignment, cluster: Cluster) -> list[ReplicaGroup]:
    """Return the replicas in groups, in the order of the first of each.

    Args:
        assignment: Which devices compute what.
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
    # The last one is of the same machine: which, stands there already.
    last = names[-1].removeprefix(f"{worker}/") if worker else names[-1]
    return f"{names[0]}..{last} x{len(names)}"


def widest_label(width: int) -> int:
    """Return the most columns of a line of so many that the names of devices take."""
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
    names = [[cluster.devices[span.device].name for span in one.spans] for one in replicas]
    return ReplicaGroup(
        numbers=tuple(numbers), replica=replicas[0], devices=tuple(zip(*names, strict=True))
    )


def _look(replica: ReplicaAssignment, cluster: Cluster) -> object:
    """Return what replicas that are drawn as one have in common."""
    devices = [cluster.devices[span.device] for span in replica.spans]
    order = {span.device: None for span in replica.spans}
    return (
        (replica.samples, replica.num_micro_batches, replica.in_flight, replica.schedule),
        tuple((span.first, span.end, list(order).index(span.device)) for span in replica.spans),
        tuple(device.type for device in devices),
        # Whether each stage is in the machine of the one before it.
        tuple(one.machine == devices[0].machine for one in devices),
    )
