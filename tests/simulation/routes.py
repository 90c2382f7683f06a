"""Through which connections bytes travel, and how long they occupy each of them.

::

    gpu:0 --out--> link of the machine --in--> gpu:1          on a shared link: over its bus, too
    host --host out--> gpu:0 --host in--> host                one for each device, or shared
    machine 0 --network out--> network --network in--> machine 1
"""

from __future__ import annotations

from dataclasses import dataclass

from evener.planner.assignment import HOST_OWNER
from evener.profile import Cluster, Link
from simulation.activities import Server, ServerKind, Use

HOST_MACHINE = 0
"""The machine in whose memory variables on the host are: that of ``cpu:0``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    uses: tuple[Use, ...]
    latency_seconds: float


def machine_of(cluster: Cluster, device: int) -> int:
    return HOST_MACHINE if device == HOST_OWNER else cluster.devices[device].machine


def route(cluster: Cluster, source: int, target: int, num_bytes: float) -> Route:
    first, last = machine_of(cluster, source), machine_of(cluster, target)
    if first != last:
        way = network_route(cluster, first, last, num_bytes)
        inside, uses = cluster.machines[last], list(way.uses)
        if target != HOST_OWNER:
            uses.append(_use("in", target, inside.link, num_bytes))
            if inside.shares_link:
                uses.append(_use("bus", last, inside.link, num_bytes))
        return Route(uses=tuple(uses), latency_seconds=way.latency_seconds)
    machine = cluster.machines[first]
    if HOST_OWNER in (source, target):
        kind: ServerKind = "host out" if source == HOST_OWNER else "host in"
        device = target if source == HOST_OWNER else source
        # Where devices share a link to the host, one of them stands for all.
        place = _first_device(cluster, first) if machine.shares_link else device
        link = machine.host_link
        uses = [_use(kind, place, link, num_bytes)]
    else:
        link = machine.link
        uses = [_use("out", source, link, num_bytes), _use("in", target, link, num_bytes)]
        if machine.shares_link:
            uses.insert(1, _use("bus", first, link, num_bytes))
    return Route(uses=tuple(uses), latency_seconds=link.latency_seconds)


def network_route(cluster: Cluster, first: int, last: int, num_bytes: float) -> Route:
    """Return the route between two machines of bytes that all of their devices send and receive."""
    uses = (
        _use("network out", first, cluster.network, num_bytes),
        _use("network in", last, cluster.network, num_bytes),
    )
    return Route(uses=uses, latency_seconds=cluster.network.latency_seconds)


def _use(kind: ServerKind, place: int, link: Link, num_bytes: float) -> Use:
    return Use(Server(kind, place), num_bytes / link.bytes_per_second)


def _first_device(cluster: Cluster, machine: int) -> int:
    return next(place for place, device in enumerate(cluster.devices) if device.machine == machine)
