"""How long weights and gradients travel between owners and the devices that compute.

::

    owner  --- weight --->  every other device that computes with the layer, once per step
    owner  <-- gradient --  the same devices, once per step

In each direction a device moves what it holds and does not own, and once more for each other holder
what it owns. Between machines one device of each takes part, and passes on or adds up.

Of all weights that k devices hold and own in equal parts, every device sends and receives
(k - 1) / k in each phase: as much as a ring all-reduce.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from evener.plan.costing.assignment import HOST_OWNER, Assignment, holders_of
from evener.profile import Cluster, ModelCosts


def exchange_seconds(
    assignment: Assignment, model: ModelCosts, cluster: Cluster
) -> Mapping[int, float]:
    """Return for each device that computes how long its weights take to arrive.

    The gradients take as long on their way back.
    """
    traffic = _Traffic(cluster)
    groups: dict[tuple[tuple[int, ...], int], int] = defaultdict(int)
    holders = holders_of(assignment.replicas, len(model.layers))
    for layer, devices, owner in zip(model.layers, holders, assignment.owners, strict=True):
        if layer.weight_bytes:
            groups[devices, owner] += layer.weight_bytes
    by_holders: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
    for (devices, owner), num_bytes in groups.items():
        by_holders[devices][owner] = num_bytes
    for devices, owned in by_holders.items():
        traffic.add(devices, owned)
    computing = {device for devices in by_holders for device in devices}
    computing.update(span.device for replica in assignment.replicas for span in replica.spans)
    return traffic.all_seconds(computing)


class _Traffic:
    """Bytes of the weights, by connection; outwards and inwards are counted apart.

    Args:
        cluster: The connections.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._received: dict[int, int] = defaultdict(int)
        self._sent: dict[int, int] = defaultdict(int)
        self._machine_received: dict[int, int] = defaultdict(int)
        self._machine_sent: dict[int, int] = defaultdict(int)
        self._from_host: dict[int, int] = defaultdict(int)
        self._on_bus: dict[int, int] = defaultdict(int)
        self._crosses: set[int] = set()

    def add(self, devices: Sequence[int], owned: Mapping[int, int]) -> None:
        """Count layers with the same holders.

        Args:
            devices: The holders.
            owned: The bytes of weights by owner.
        """
        by_machine: dict[int, list[int]] = defaultdict(list)
        for device in devices:
            by_machine[self._cluster.devices[device].machine].append(device)
        total = sum(owned.values())
        if HOST_OWNER in owned:
            for device in devices:
                self._from_host[device] += owned[HOST_OWNER]
        among_devices = total - owned.get(HOST_OWNER, 0)
        inside: dict[int, int] = defaultdict(int)
        for owner, num_bytes in owned.items():
            if owner != HOST_OWNER:
                inside[self._cluster.devices[owner].machine] += num_bytes
        for machine, here in by_machine.items():
            for device in here:
                fetched = among_devices - owned.get(device, 0)
                self._received[device] += fetched
                self._on_bus[machine] += fetched
            outside = among_devices - inside.get(machine, 0)
            if outside:
                self._machine_received[machine] += outside
                # One device of the machine takes it from the network, and passes it on.
                for device in here:
                    self._sent[device] += outside * (len(here) - 1) // len(here)
                    self._crosses.add(device)
        for owner, num_bytes in owned.items():
            if owner == HOST_OWNER:
                continue
            machine = self._cluster.devices[owner].machine
            others = [device for device in by_machine.get(machine, ()) if device != owner]
            self._sent[owner] += num_bytes * len(others)
            away = sum(1 for other in by_machine if other != machine)
            self._machine_sent[machine] += num_bytes * away
            if away:
                self._crosses.add(owner)

    def all_seconds(self, devices: Iterable[int]) -> dict[int, float]:
        """Return for each device the time until all its weights are there."""
        from_hosts: dict[int, int] = defaultdict(int)
        for device, num_bytes in self._from_host.items():
            from_hosts[self._cluster.devices[device].machine] += num_bytes
        return {device: self._seconds(device, from_hosts) for device in devices}

    def _seconds(self, device: int, from_hosts: Mapping[int, int]) -> float:
        number = self._cluster.devices[device].machine
        machine = self._cluster.machines[number]
        moved = max(self._received[device], self._sent[device])
        times = [machine.link.seconds(moved)]
        if machine.shares_link:
            times.append(machine.link.seconds(self._on_bus[number]))
        if self._from_host[device]:
            size = from_hosts[number] if machine.shares_link else self._from_host[device]
            times.append(machine.host_link.seconds(size))
        if device in self._crosses:
            across = max(self._machine_received[number], self._machine_sent[number])
            times.append(self._cluster.network.seconds(across))
        return max(times)
