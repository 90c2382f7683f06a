"""Weights on their way from owners to devices, gradients on their way back, and updates.

::

    owner ----> other devices of its machine
      |
      +-------> one device of each other machine ----> the other devices there

Gradients take the same ways back; where several meet, they are added up, and one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from evener.plan.costing import HOST_OWNER, Assignment
from evener.plan.costing.assignment import holders_of
from evener.profile import Cluster, CostProfile
from evener.simulate.activities import Activity, ActivityKind, Server, StepGraph, Use
from evener.simulate.routes import machine_of, route

_Copy = tuple[int, int]
"""A device and the place of a layer: the weights of the layer that this device computes with."""


@dataclass(slots=True)
class LayerProgress:
    """What is known of the copies of the layers while a step is put together.

    Args:
        arrived: The activity with which the weights are there; absent where they are at home.
        first_gradient: The first activity that computes a gradient of the weights.
        last_gradient: The last activity that does, of each replica of the device.
        last_pass: The last activity of each device and replica.
    """

    arrived: dict[_Copy, int] = field(default_factory=dict[_Copy, int])
    first_gradient: dict[_Copy, int] = field(default_factory=dict[_Copy, int])
    last_gradient: dict[_Copy, list[int]] = field(default_factory=dict[_Copy, list[int]])
    last_pass: dict[int, list[int]] = field(default_factory=dict[int, list[int]])


def fetch_weights(
    graph: StepGraph, assignment: Assignment, profile: CostProfile, progress: LayerProgress
) -> None:
    """Add the transfers of all weights to the devices that compute with them."""
    layers, cluster = profile.model.layers, profile.cluster
    holders = holders_of(assignment.replicas, len(layers))
    for place, (layer, owner) in enumerate(zip(layers, assignment.owners, strict=True)):
        if not layer.weight_bytes:
            continue
        for source, target in _hops(cluster, holders[place], owner, place):
            before = progress.arrived.get((source, place))
            progress.arrived[target, place] = _transfer(
                graph,
                cluster,
                kind="fetch",
                what=f"weights of {layer.name}",
                ends=(source, target),
                num_bytes=layer.weight_bytes,
                needs=() if before is None else (before,),
            )


def send_gradients(
    graph: StepGraph, assignment: Assignment, profile: CostProfile, progress: LayerProgress
) -> None:
    """Add the transfers of all gradients to the owners, and the updates there."""
    layers, cluster = profile.model.layers, profile.cluster
    holders = holders_of(assignment.replicas, len(layers))
    # The gradients of the last layers are there first.
    for place in reversed(range(len(layers))):
        owner, layer = assignment.owners[place], layers[place]
        summands: dict[int, list[int]] = {
            device: list(progress.last_gradient[device, place]) for device in holders[place]
        }
        sent: list[tuple[int, int]] = []
        hops = () if not layer.weight_bytes else _hops(cluster, holders[place], owner, place)
        for target, source in reversed(list(hops)):
            number = _transfer(
                graph,
                cluster,
                kind="gradient",
                what=f"gradients of {layer.name}",
                ends=(source, target),
                num_bytes=layer.weight_bytes,
                needs=tuple(summands[source]),
            )
            summands.setdefault(target, []).append(number)
            sent.append((target, number))
            begin = progress.first_gradient[source, place]
            graph.hold(source, layer.weight_bytes, begin=begin, end=number)
        update = _update(graph, assignment, profile, place, summands.get(owner, []), progress)
        _hold_sums(graph, progress, place, layer.weight_bytes, owner, sent, update)
        _hold_fetched(graph, progress, place, layer.weight_bytes, holders[place])


def _hops(
    cluster: Cluster, holders: Sequence[int], owner: int, place: int
) -> Iterator[tuple[int, int]]:
    """Yield sources and targets of a layer's weights; each source has them by then."""
    by_machine: dict[int, list[int]] = {}
    for device in holders:
        by_machine.setdefault(machine_of(cluster, device), []).append(device)
    home = machine_of(cluster, owner)
    for machine, here in by_machine.items():
        if machine == home:
            yield from ((owner, target) for target in _from_next(here, owner) if target != owner)
        else:
            # Another device for each layer, so that all of them share the work.
            entry = here[place % len(here)]
            yield owner, entry
            yield from ((entry, target) for target in _from_next(here, entry) if target != entry)


def _from_next(devices: Sequence[int], source: int) -> list[int]:
    """Return devices from the one after the source on: owners do not all begin with the same."""
    return sorted(devices, key=lambda device: (device <= source, device))


def _transfer(
    graph: StepGraph,
    cluster: Cluster,
    *,
    kind: ActivityKind,
    what: str,
    ends: tuple[int, int],
    num_bytes: float,
    needs: tuple[int, ...],
) -> int:
    source, target = ends
    way = route(cluster, source, target, num_bytes)
    return graph.add(
        Activity(
            kind=kind,
            what=what,
            needs=needs,
            uses=way.uses,
            latency_seconds=way.latency_seconds,
            device=target,
            source=source,
            num_bytes=num_bytes,
        )
    )


def _update(
    graph: StepGraph,
    assignment: Assignment,
    profile: CostProfile,
    place: int,
    summands: Sequence[int],
    progress: LayerProgress,
) -> int:
    """Add the update of a layer: when its gradients are there, and its owner has no pass left."""
    owner = assignment.owners[place]
    if owner == HOST_OWNER:
        # As for the prediction: the host is as fast as the slowest type of device.
        seconds = max(times[place].update_seconds for times in profile.times.values())
    else:
        seconds = profile.times[profile.cluster.devices[owner].type][place].update_seconds
    return graph.add(
        Activity(
            kind="update",
            what=f"update of {profile.model.layers[place].name}",
            needs=(*summands, *progress.last_pass.get(owner, ())),
            uses=(Use(Server("compute", owner), seconds),),
            device=owner,
        )
    )


def _hold_sums(
    graph: StepGraph,
    progress: LayerProgress,
    place: int,
    num_bytes: float,
    owner: int,
    sent: Sequence[tuple[int, int]],
    update: int,
) -> None:
    """Keep what arrives until it is added: on the owner to the update, on the way to its end."""
    own = progress.first_gradient.get((owner, place))
    if own is not None:
        graph.hold(owner, num_bytes, begin=own, end=update)
    leaves = {graph.activities[number].source: number for _, number in sent}
    for target, number in sent:
        graph.hold(target, num_bytes, begin=number, end=leaves.get(target, update))


def _hold_fetched(
    graph: StepGraph,
    progress: LayerProgress,
    place: int,
    num_bytes: float,
    holders: Sequence[int],
) -> None:
    for device in holders:
        arrived = progress.arrived.get((device, place))
        if arrived is not None:
            last = max(progress.last_gradient[device, place])
            graph.hold(device, num_bytes, begin=arrived, end=last)


def owned_bytes(assignment: Assignment, profile: CostProfile) -> Mapping[int, float]:
    """Return what every device owns, the host under `HOST_OWNER`."""
    owned: dict[int, float] = {}
    for layer, owner in zip(profile.model.layers, assignment.owners, strict=True):
        owned[owner] = owned.get(owner, 0.0) + layer.owned_bytes
    return owned
