"""Seconds of the exchange: weights to the devices that compute, gradients back to the owners.

::

    owner  --- weight --->  every other device that computes the layer, once per step
    owner  <-- gradient --  the same devices, once per step

In each direction a device transfers the layers that it computes and does not own once, and those
that it owns once for each other device that computes them. If k devices compute the same layers and
own equal parts of them, each sends and receives (k - 1) / k of the weights per direction: as much
as in a ring all-reduce.

Machines that compute the same layers have owners of their own (`EACH_MACHINE`), and all-reduce the
gradients in a ring: of W bytes, each of m machines sends and receives 2 W (m - 1) / m before the
update, so all of it counts as gradient traffic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evener.cost_model.assignment import EACH_MACHINE, HOST_OWNER, Assignment
from evener.cost_model.ownership import by_machine, holders_of
from evener.profile import Cluster, ModelCosts


class ExchangeSeconds(NamedTuple):
    """Seconds of the transfers of a device, if no computation overlaps them.

    Args:
        arrival: Seconds until its weights have arrived.
        departure: Seconds until its gradients are summed on their owners.
    """

    arrival: float = 0.0
    departure: float = 0.0


def exchange_seconds(
    assignment: Assignment, model: ModelCosts, cluster: Cluster
) -> Mapping[int, ExchangeSeconds]:
    """Return the transfer seconds of weights and gradients by device index."""
    holders = holders_of(assignment.replicas, len(model.layers))
    weights = [layer.weight_bytes for layer in model.layers]
    gradients = [layer.gradient_bytes for layer in model.layers]
    arriving = _travelling(weights, holders, assignment.owners, cluster)
    if gradients == weights:
        return arriving
    leaving = _travelling(gradients, holders, assignment.owners, cluster)
    return {
        device: ExchangeSeconds(seconds.arrival, leaving[device].departure)
        for device, seconds in arriving.items()
    }


def _travelling(
    sizes: Sequence[int],
    holders: Sequence[tuple[int, ...]],
    owners: Sequence[int],
    cluster: Cluster,
) -> dict[int, ExchangeSeconds]:
    """Return the transfer seconds by device.

    Args:
        sizes: Bytes of each layer.
        holders: Devices that compute each layer.
        owners: Owner of each layer.
        cluster: Links between the devices.
    """
    traffic = _Traffic(cluster)
    groups: dict[tuple[int, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for size, devices, owner in zip(sizes, holders, owners, strict=True):
        groups[devices][owner] += size
    for devices, owned in groups.items():
        traffic.add(devices, owned)
    computing = {device for devices in groups for device in devices}
    return {device: traffic.seconds(device) for device in computing}


class _Traffic:
    """Bytes of weights or gradients per link.

    Args:
        cluster: Links between the devices.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._received: dict[int, float] = defaultdict(float)
        self._sent: dict[int, float] = defaultdict(float)
        self._from_host: dict[int, float] = defaultdict(float)
        # By machine: on the bus between its devices, between them and the host, on the
        # network, and on the network in rings.
        self._on_bus: dict[int, float] = defaultdict(float)
        self._with_host: dict[int, float] = defaultdict(float)
        self._on_network: dict[int, float] = defaultdict(float)
        self._rings: dict[int, float] = defaultdict(float)
        self._crosses: set[int] = set()

    def add(self, devices: tuple[int, ...], owned: Mapping[int, int]) -> None:
        """Add layers that the same devices compute.

        Args:
            devices: Devices that compute the layers.
            owned: Bytes of these layers by owner.
        """
        machines = by_machine(devices, self._cluster)
        at_home: dict[int, int] = defaultdict(int)
        for owner, size in owned.items():
            if owner >= 0:
                home = self._machine(owner)
                at_home[home] += size
                num_near = len(machines.get(home, ()))
                self._sent[owner] += size * (num_near - (owner in devices))
                self._add_far(home, [owner], size * (len(devices) - num_near))
        on_devices = sum(at_home.values())
        for machine, here in machines.items():
            # Each device fetches what other machines own over the network.
            self._add_far(machine, here, len(here) * (on_devices - at_home[machine]))
            for device in here:
                fetched = at_home[machine] - owned.get(device, 0)
                self._received[device] += fetched
                self._on_bus[machine] += fetched
        if from_host := owned.get(HOST_OWNER, 0):
            for device in devices:
                self._from_host[device] += from_host
                self._with_host[self._machine(device)] += from_host
        if shared := owned.get(EACH_MACHINE, 0):
            self._add_rings(machines, shared)

    def _add_far(self, machine: int, devices: Sequence[int], size: int) -> None:
        """Add bytes that devices of a machine exchange with other machines."""
        if size:
            self._on_network[machine] += size
            self._crosses.update(devices)

    def _add_rings(self, machines: Mapping[int, Sequence[int]], shared: int) -> None:
        for machine, here in machines.items():
            self._rings[machine] += 2 * shared * (len(machines) - 1) / len(machines)
            self._crosses.update(here)
            for device in here:
                moved = shared * (len(here) - 1) / len(here)
                self._received[device] += moved
                self._sent[device] += moved
                self._on_bus[machine] += moved

    def _machine(self, device: int) -> int:
        return self._cluster.devices[device].machine

    def seconds(self, device: int) -> ExchangeSeconds:
        """Return the transfer seconds of a device."""
        number = self._machine(device)
        machine = self._cluster.machines[number]
        moved = max(self._received[device], self._sent[device])
        times = [machine.link.seconds(self._on_bus[number] if machine.shares_link else moved)]
        if self._from_host[device]:
            shared = machine.shares_link
            size = self._with_host[number] if shared else self._from_host[device]
            times.append(machine.host_link.seconds(size))
        departing = list(times)
        if device in self._crosses:
            network, size = self._cluster.network, self._on_network[number]
            times.append(network.seconds(size))
            departing.append(network.seconds(size + self._rings[number]))
        return ExchangeSeconds(max(times), max(departing))
