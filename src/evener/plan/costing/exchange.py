"""How long weights and gradients travel between owners and the devices that compute.

::

    owner  --- weight --->  every other device that computes with the layer, once per step
    owner  <-- gradient --  the same devices, once per step

In each direction a device moves what it holds and does not own, and once more for each other holder
what it owns. Of all weights that k devices hold and own in equal parts, every device sends and
receives (k - 1) / k in each phase: as much as a ring all-reduce.

Several machines with the same layers have owners of their own. Their gradients are added up around
a ring: of W bytes, each of m machines sends and receives 2 W (m - 1) / m, of which one half is
counted with the weights and one with the gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from evener.plan.costing.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    by_machine,
    crosses_machines,
    holders_of,
)
from evener.profile import Cluster, ModelCosts


def exchange_seconds(
    assignment: Assignment, model: ModelCosts, cluster: Cluster
) -> Mapping[int, float]:
    """Return for each device that computes how long its weights take to arrive.

    The gradients take as long on their way back.
    """
    traffic = _Traffic(cluster)
    holders = holders_of(assignment.replicas, len(model.layers))
    groups: dict[tuple[int, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for layer, devices, owner in zip(model.layers, holders, assignment.owners, strict=True):
        groups[devices][owner] += layer.weight_bytes
    for devices, owned in groups.items():
        traffic.add(devices, owned)
    computing = {device for devices in groups for device in devices}
    return {device: traffic.seconds(device) for device in computing}


class _Traffic:
    """Bytes of the weights, by connection.

    Args:
        cluster: The connections.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._received: dict[int, float] = defaultdict(float)
        self._sent: dict[int, float] = defaultdict(float)
        self._from_host: dict[int, float] = defaultdict(float)
        # By machine: on the bus between its devices, between them and the host, on the network.
        self._on_bus: dict[int, float] = defaultdict(float)
        self._with_host: dict[int, float] = defaultdict(float)
        self._on_network: dict[int, float] = defaultdict(float)
        self._crosses: set[int] = set()

    def add(self, devices: tuple[int, ...], owned: Mapping[int, int]) -> None:
        """Count layers with the same holders.

        Args:
            devices: The holders.
            owned: The bytes of weights by owner.
        """
        on_devices = sum(size for owner, size in owned.items() if owner >= 0)
        for device in devices:
            fetched = on_devices - owned.get(device, 0)
            self._received[device] += fetched
            self._on_bus[self._machine(device)] += fetched
        for owner, size in owned.items():
            if owner >= 0:
                self._sent[owner] += size * (len(devices) - (owner in devices))
        if from_host := owned.get(HOST_OWNER, 0):
            for device in devices:
                self._from_host[device] += from_host
                self._with_host[self._machine(device)] += from_host
        if crosses_machines(devices, self._cluster):
            self._add_rings(devices, owned.get(EACH_MACHINE, 0), on_devices)

    def _add_rings(self, devices: tuple[int, ...], shared: float, elsewhere: float) -> None:
        machines = by_machine(devices, self._cluster)
        for machine, here in machines.items():
            # What a device of another machine owns comes as often as it is held.
            self._on_network[machine] += shared * (len(machines) - 1) / len(machines)
            self._on_network[machine] += elsewhere * len(here)
            for device in here:
                moved = shared * (len(here) - 1) / len(here)
                self._received[device] += moved
                self._sent[device] += moved
                self._on_bus[machine] += moved
                self._crosses.add(device)

    def _machine(self, device: int) -> int:
        return self._cluster.devices[device].machine

    def seconds(self, device: int) -> float:
        """Return the time until all weights of a device are there."""
        number = self._machine(device)
        machine = self._cluster.machines[number]
        moved = max(self._received[device], self._sent[device])
        times = [machine.link.seconds(self._on_bus[number] if machine.shares_link else moved)]
        if self._from_host[device]:
            shared = machine.shares_link
            size = self._with_host[number] if shared else self._from_host[device]
            times.append(machine.host_link.seconds(size))
        if device in self._crosses:
            times.append(self._cluster.network.seconds(self._on_network[number]))
        return max(times)
