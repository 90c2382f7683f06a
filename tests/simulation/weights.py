"""Weights on their way from owners to devices, gradients on their way back, and updates.

::

    one owner         owner ----> every other device that computes with the layer

    each machine      gpu:0 ---> gpu:1 ---> gpu:2 ---> gpu:0     inside of a machine
    has variables     machine 0 ---> machine 1 ---> machine 0    gradients, between machines

Gradients take the same ways back. In a ring all devices send at once, each of k devices (k - 1) / k
of the bytes for weights and for gradients, each of k machines 2 (k - 1) / k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evener.planner.assignment import EACH_MACHINE, Assignment, by_machine, holders_of
from evener.planner.memory import gradients_wait
from evener.planner.prediction import owner_update_seconds
from evener.profile import CostProfile
from simulation.activities import Activity, ActivityKind, Server, StepGraph, Use
from simulation.routes import Route, machine_of, network_route, route

_Copy = tuple[int, int]
"""Device index and layer index: the copy of the layer's weights on the device."""


@dataclass(slots=True)
class LayerProgress:
    """Progress of the copies of the layers while the graph of a step is built."""

    arrived: dict[_Copy, int] = field(default_factory=dict[_Copy, int])
    first_gradient: dict[_Copy, int] = field(default_factory=dict[_Copy, int])
    last_gradient: dict[_Copy, list[int]] = field(default_factory=dict[_Copy, list[int]])
    last_pass: dict[int, list[int]] = field(default_factory=dict[int, list[int]])


class WeightBuilder:
    """Builder of the activities of weights and gradients."""

    def __init__(
        self,
        graph: StepGraph,
        assignment: Assignment,
        profile: CostProfile,
        progress: LayerProgress,
    ) -> None:
        self._graph = graph
        self._owners = assignment.owners
        self._profile = profile
        self._cluster = profile.cluster
        self._layers = profile.model.layers
        self._progress = progress
        self._holders = holders_of(assignment.replicas, len(self._layers))
        self._waits = gradients_wait(profile.model, assignment.replicas, assignment.recompute)

    def fetch(self) -> None:
        for place, layer in enumerate(self._layers):
            what = f"weights of {layer.name}"
            if not layer.weight_bytes:
                continue
            if self._owners[place] == EACH_MACHINE:
                for here in self._machines(place):
                    size = layer.weight_bytes * (len(here) - 1) / len(here)
                    for source, target in _ring(here):
                        number = self._transfer("fetch", what, source, target, size)
                        self._progress.arrived[target, place] = number
                continue
            owner = self._owners[place]
            for target in _from_next(self._holders[place], owner):
                number = self._transfer("fetch", what, owner, target, layer.weight_bytes)
                self._progress.arrived[target, place] = number

    def send_gradients(self) -> None:
        """Add the transfers of all gradients to the owners, and the updates there."""
        # The gradients of the last layers are there first.
        for place in reversed(range(len(self._layers))):
            if self._owners[place] == EACH_MACHINE:
                self._reduce_around_rings(place)
            else:
                self._send_to_owner(place)

    def _send_to_owner(self, place: int) -> None:
        owner, layer = self._owners[place], self._layers[place]
        summands = list(self._progress.last_gradient.get((owner, place), ()))
        arrived: list[int] = []
        if layer.gradient_bytes:
            what = f"gradients of {layer.name}"
            for source in reversed(_from_next(self._holders[place], owner)):
                needs = self._progress.last_gradient[source, place]
                number = self._transfer(
                    "gradient", what, source, owner, layer.gradient_bytes, needs
                )
                begin = self._progress.first_gradient[source, place]
                self._graph.hold(source, layer.gradient_bytes, begin=begin, end=number)
                arrived.append(number)
        update = self._update(place, owner, [*summands, *arrived], part=1.0)
        for number in arrived:
            self._graph.hold(owner, layer.gradient_bytes, begin=number, end=update)
        if summands:
            begin = self._progress.first_gradient[owner, place]
            self._graph.hold(owner, layer.gradient_bytes, begin=begin, end=update)
        for device in self._holders[place]:
            self._hold_fetched(device, place, layer.weight_bytes)

    def _reduce_around_rings(self, place: int) -> None:
        """Add up gradients in each machine, then between machines; all devices update."""
        machines = self._machines(place)
        reduced = [self._reduce_inside(place, here) for here in machines]
        complete = self._reduce_between(place, machines, reduced)
        layer = self._layers[place]
        for here, numbers in zip(machines, reduced, strict=True):
            for device, number in zip(here, numbers, strict=True):
                part = 1 / len(here)
                update = self._update(place, device, complete, part=part)
                begin = self._progress.first_gradient[device, place]
                size = layer.gradient_bytes
                self._graph.hold(device, size * (1 - part), begin=begin, end=number)
                self._graph.hold(device, size * part, begin=begin, end=update)
                self._hold_fetched(device, place, layer.weight_bytes * (1 - part))

    def _reduce_inside(self, place: int, here: Sequence[int]) -> list[int]:
        """Return for each device of a machine the activity with which its part is added up."""
        layer, gradients = self._layers[place], self._progress.last_gradient
        if len(here) == 1 or not layer.gradient_bytes:
            return [max(gradients[device, place]) for device in here]
        needs = [number for device in here for number in gradients[device, place]]
        size = layer.gradient_bytes * (len(here) - 1) / len(here)
        what = f"gradients of {layer.name}"
        found: dict[int, int] = {}
        for source, target in _ring(here):
            found[target] = self._transfer("gradient", what, source, target, size, needs)
            self._graph.hold(target, size, begin=found[target], end=found[target])
        return [found[device] for device in here]

    def _reduce_between(
        self, place: int, machines: Sequence[Sequence[int]], reduced: Sequence[Sequence[int]]
    ) -> list[int]:
        """Return the activities with which all machines have the sum of all gradients."""
        layer = self._layers[place]
        needs = [number for numbers in reduced for number in numbers]
        if len(machines) == 1 or not layer.gradient_bytes:
            return needs
        # Another device for each layer stands for those of its machine.
        ends = [here[place % len(here)] for here in machines]
        num_bytes = 2 * layer.gradient_bytes * (len(machines) - 1) / len(machines)
        what = f"gradients of {layer.name}"
        numbers: list[int] = []
        for source, target in _ring(ends):
            first, last = (machine_of(self._cluster, device) for device in (source, target))
            way = network_route(self._cluster, first, last, num_bytes)
            number = self._transfer("gradient", what, source, target, num_bytes, needs, way)
            numbers.append(number)
        return numbers

    def _machines(self, place: int) -> list[list[int]]:
        return list(by_machine(self._holders[place], self._cluster).values())

    def _transfer(
        self,
        kind: ActivityKind,
        what: str,
        source: int,
        target: int,
        num_bytes: float,
        needs: Sequence[int] = (),
        way: Route | None = None,
    ) -> int:
        way = way or route(self._cluster, source, target, num_bytes)
        return self._graph.add(
            Activity(
                kind=kind,
                what=what,
                needs=tuple(needs),
                uses=way.uses,
                latency_seconds=way.latency_seconds,
                device=target,
                source=source,
                num_bytes=num_bytes,
            )
        )

    def _update(self, place: int, owner: int, summands: Sequence[int], *, part: float) -> int:
        """Add an update of a layer: when its gradients are there.

        Where calls have an order, or gradients are clipped together, no pass is left then.
        """
        is_shared = self._owners[place] == EACH_MACHINE
        num_sums = 1 if is_shared else len(self._holders[place])
        seconds = owner_update_seconds(place, owner, self._profile, num_sums=num_sums)
        layer = self._layers[place]
        passes = self._progress.last_pass.get(owner, ()) if self._waits else ()
        number = self._graph.add(
            Activity(
                kind="update",
                what=f"update of {layer.name}",
                needs=(*summands, *passes),
                uses=(Use(Server("compute", owner), seconds * part),),
                device=owner,
            )
        )
        self._graph.hold(owner, layer.update_bytes * part, begin=number, end=number)
        return number

    def _hold_fetched(self, device: int, place: int, num_bytes: float) -> None:
        arrived = self._progress.arrived.get((device, place))
        if arrived is not None:
            last = max(self._progress.last_gradient[device, place])
            self._graph.hold(device, num_bytes, begin=arrived, end=last)


def owned_bytes(assignment: Assignment, profile: CostProfile) -> Mapping[int, float]:
    owned: dict[int, float] = {}
    holders = holders_of(assignment.replicas, len(profile.model.layers))
    for layer, owner, devices in zip(profile.model.layers, assignment.owners, holders, strict=True):
        parts = {owner: 1.0}
        if owner == EACH_MACHINE:
            machines = by_machine(devices, profile.cluster).values()
            parts = {device: 1 / len(here) for here in machines for device in here}
        for device, part in parts.items():
            owned[device] = owned.get(device, 0.0) + layer.owned_bytes * part
    return owned


def _from_next(devices: Sequence[int], source: int) -> list[int]:
    """Return devices from the one after the source on: owners do not all begin with the same."""
    others = (device for device in devices if device != source)
    return sorted(others, key=lambda device: (device <= source, device))


def _ring(devices: Sequence[int]) -> list[tuple[int, int]]:
    """Return each device with the next one; one alone has none."""
    if len(devices) == 1:
        return []
    return list(zip(devices, [*devices[1:], devices[0]], strict=True))
