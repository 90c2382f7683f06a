"""The memory of every device at the worst moment of a step, from the costs of its layers."""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    by_machine,
    holders_of,
)
from evener.cost_model.barriers import is_in_parts
from evener.cost_model.stage_memory import (
    ExecutionMode,
    StageMemory,
    fused_gradients,
    gradients_wait,
    put_off_bytes,
    stage_memory,
)
from evener.profile import Cluster, LayerCosts, ModelCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """What a step needs on one device at its worst moment, in bytes.

    Args:
        variables: What it owns: weights, optimizer state, other variables.
        fetched: Weights of other owners.
        gradients: Its own partial gradients, and those that arrive for what it owns.
        activations: What is kept from forward to backward passes, and samples.
        workspace: What is needed only while a layer is computed, or on its way between stages.
    """

    variables: float = 0.0
    fetched: float = 0.0
    gradients: float = 0.0
    activations: float = 0.0
    workspace: float = 0.0

    @property
    def total(self) -> int:
        """All of it."""
        return round(
            self.variables + self.fetched + self.gradients + self.activations + self.workspace
        )

    def plus(self, **more: float) -> MemoryPrediction:
        """Return the sum with more of some parts."""
        return dataclasses.replace(
            self, **{name: getattr(self, name) + size for name, size in more.items()}
        )


def predict_memory(
    assignment: Assignment,
    model: ModelCosts,
    cluster: Cluster,
    peak_live: Sequence[Sequence[int]],
    seconds: Sequence[float] | None = None,
) -> dict[int, MemoryPrediction]:
    """Return what every device needs, the host under `HOST_OWNER`.

    Args:
        assignment: What every device computes and owns.
        model: What it needs for that.
        cluster: The devices.
        peak_live: For each replica, and each of its stages, the most micro-batches that are
            alive there at once.
        seconds: How long the passes of each replica take; None if they are equally long.
    """
    holders = holders_of(assignment.replicas, len(model.layers))
    mode = ExecutionMode.of(assignment, model)
    waits = gradients_wait(model, assignment.replicas, assignment.recompute)
    arrival = GradientArrival(assignment, seconds, waits=waits)
    at_once = _devices_at_once(assignment, mode)
    mode_at_once = dataclasses.replace(mode, has_order=False, waits=False)
    needs: dict[int, MemoryPrediction] = defaultdict(MemoryPrediction)
    updating: dict[int, int] = defaultdict(int)
    adding: dict[int, int] = defaultdict(int)
    shared: dict[tuple[int, ...], list[LayerCosts]] = defaultdict(list)
    for layer, devices, owner in zip(model.layers, holders, assignment.owners, strict=True):
        if owner == EACH_MACHINE:
            shared[devices].append(layer)
            continue
        # The sums of the other devices lie on the owner until they are added.
        is_holder = owner in devices
        num_early, num_others = arrival.num_at(owner, devices), len(devices) - is_holder
        needs[owner] = needs[owner].plus(
            variables=layer.owned_bytes,
            fetched=-layer.weight_bytes * is_holder,
            gradients=layer.gradient_bytes * num_early,
        )
        adding[owner] = max(adding[owner], layer.gradient_bytes * (num_others - num_early))
        updating[owner] = max(updating[owner], layer.update_bytes)
    for devices, of_machines in shared.items():
        variables = sum(layer.owned_bytes for layer in of_machines)
        weights = sum(layer.weight_bytes for layer in of_machines)
        gradients = sum(layer.gradient_bytes for layer in of_machines)
        update = max(layer.update_bytes for layer in of_machines)
        for here in by_machine(devices, cluster).values():
            # Those of the machine's other devices; and their own, which wait for other machines.
            num_waiting = len(here) - 1 if waits else len(here)
            for device in here:
                needs[device] = needs[device].plus(
                    variables=variables / len(here),
                    fetched=-weights / len(here),
                    gradients=gradients * num_waiting / len(here),
                )
                updating[device] = max(updating[device], update)
    for device, waiting in _waiting(assignment, model, at_once, arrival, waits=waits).items():
        needs[device] = needs[device].plus(gradients=waiting)
    stages: dict[tuple[int, int, bool, bool], StageMemory] = {}
    for replica, live in zip(assignment.replicas, peak_live, strict=True):
        accumulates = replica.num_micro_batches > 1
        for number, (span, alive) in enumerate(zip(replica.spans, live, strict=True)):
            is_at_once = span.device in at_once
            key = span.first, span.end, accumulates, is_at_once
            if key not in stages:
                of_span = mode_at_once if is_at_once else mode
                stages[key] = stage_memory(span, model, of_span, accumulates=accumulates)
            worst = stages[key].worst(
                replica.num_micro_batches,
                alive,
                replica.micro_batch,
                updating=updating.pop(span.device, 0),
            )
            needs[span.device] = needs[span.device].plus(
                fetched=stages[key].weights, **worst._asdict()
            )
            if number and replica.schedule == "zero_bubble":
                # As many wait for their weights' gradients as stages are before, and the one at
                # hand does; the first stage never waits.
                num_put_off = min(number, alive - 1) + 1
                late = num_put_off * put_off_bytes(span, model) * replica.micro_batch
                needs[span.device] = needs[span.device].plus(activations=late)
    # Whoever only owns has nothing to do before.
    for owner in needs:
        more = updating.get(owner, 0)
        needs[owner] = needs[owner].plus(gradients=adding[owner], workspace=more)
    return dict(needs)


def _devices_at_once(assignment: Assignment, mode: ExecutionMode) -> set[int]:
    """Return the devices that, beside others, compute all in a call: each needs a weight once."""
    if mode.is_alone or any(mode.recompute):
        return set()
    return {one.spans[0].device for one in assignment.replicas if not is_in_parts(one)}


def _waiting(
    assignment: Assignment,
    model: ModelCosts,
    at_once: Collection[int],
    arrival: GradientArrival,
    *,
    waits: bool,
) -> dict[int, float]:
    """Return the bytes of own gradients that wait on devices which compute in one call.

    Beyond what fits into the place of fetched weights: a weight is needed to the backward pass of
    its layer, so when a layer's gradients wait, weights of the layers behind are gone::

        backward passes       c owned    b fetched    a owned
        beyond fetched          + c         - b         + a        the most of the sums counts

    Args:
        assignment: Who computes and owns.
        model: The layers.
        at_once: The devices that compute in one call.
        arrival: Which gradients of other devices are there when an owner has its own.
        waits: Whether all gradients of a device are there before the first of them leaves.
    """
    if waits:
        more = sum(layer.other_gradient_bytes for layer in model.layers[1:])
        found = dict.fromkeys(at_once, float(more))
        for layer, owner in zip(model.layers[1:], assignment.owners[1:], strict=True):
            if owner in found:
                found[owner] += layer.weight_bytes
        return found
    holders = holders_of(assignment.replicas, len(model.layers))
    own: dict[int, int] = defaultdict(int)
    most: dict[int, float] = defaultdict(float)
    total = 0
    for layer, devices, owner in reversed(
        list(zip(model.layers, holders, assignment.owners, strict=True))
    ):
        if owner in at_once:
            # Where its weights are not fetched, none of them makes place for its gradients.
            more = layer.gradient_bytes - fused_gradients(layer)
            most[owner] = max(most[owner], own[owner] + more - total)
            if arrival.num_at(owner, devices) < len(devices) - 1:
                own[owner] += layer.gradient_bytes
                most[owner] = max(most[owner], own[owner] - total)
            # Nothing was fetched, so no place is free.
            own[owner] += layer.weight_bytes
        total += layer.weight_bytes
    return most


class GradientArrival:
    """How many gradients of a layer lie on its owner while that still computes.

    Where the calls of a step have an order, sums leave at its end, and those of faster devices may
    be there arrival. Else each gradient leaves as soon as it is there, and a device that is as fast
    as the owner sends it when the owner has its own.

    Args:
        assignment: Who computes and owns.
        seconds: How long the passes of each replica take; None if they are equally long.
        waits: Whether all gradients of a device are there before the first of them leaves.
    """

    def __init__(
        self, assignment: Assignment, seconds: Sequence[float] | None, *, waits: bool
    ) -> None:
        self._waits = waits
        times = seconds or [1.0] * len(assignment.replicas)
        self._seconds: dict[int, float] = {}
        for replica, one in zip(assignment.replicas, times, strict=True):
            for span in replica.spans:
                self._seconds[span.device] = max(self._seconds.get(span.device, 0.0), one)
        self._sorted: dict[tuple[int, ...], list[float]] = {}

    def num_at(self, owner: int, devices: tuple[int, ...]) -> int:
        """Return how many gradients of a layer that some devices hold lie on its owner."""
        others = len(devices) - (owner in devices)
        if self._waits or owner not in devices:
            return others
        if devices not in self._sorted:
            self._sorted[devices] = sorted(self._seconds[device] for device in devices)
        return bisect.bisect_left(self._sorted[devices], self._seconds[owner] * _AS_FAST)


_AS_FAST = 0.999
"""Devices that take less than this part of another's time have their gradients before it."""


def shortages(needs: Mapping[int, MemoryPrediction], cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Yield each device that lacks memory for its needs, with the bytes that it lacks."""
    for device, needed in needs.items():
        if device == HOST_OWNER:
            sizes = [machine.host_memory_bytes for machine in cluster.machines]
            memory = min((size for size in sizes if size is not None), default=None)
        else:
            memory = cluster.devices[device].memory_bytes
        if memory is not None and needed.total > memory:
            yield device, needed.total - memory
