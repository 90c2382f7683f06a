"""Peak memory of every device in a step, from the costs of its layers."""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from evener.cost_model.assignment import EACH_MACHINE, HOST_OWNER, Assignment
from evener.cost_model.barriers import is_in_parts
from evener.cost_model.ownership import by_machine, holders_of
from evener.cost_model.stage_memory import (
    ExecutionMode,
    StageMemory,
    deferred_bytes,
    fused_gradients,
    gradients_wait,
    stage_memory,
)
from evener.profile import Cluster, LayerCosts, ModelCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """Peak memory of a step on one device, in bytes.

    Args:
        variables: Owned weights, optimizer state and other variables.
        fetched: Weights fetched from other owners.
        gradients: Gradients of the device, and those that arrive for the weights that it owns.
        activations: Tensors saved by forward passes for backward passes, and input samples.
        workspace: Temporary tensors of the layer that is being computed, and transfers between
            stages.
    """

    variables: float = 0.0
    fetched: float = 0.0
    gradients: float = 0.0
    activations: float = 0.0
    workspace: float = 0.0

    @property
    def total(self) -> int:
        """The sum of all kinds."""
        return round(
            self.variables + self.fetched + self.gradients + self.activations + self.workspace
        )

    def plus(self, **more: float) -> MemoryPrediction:
        """Return the prediction with bytes added to some kinds."""
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
    """Return the peak memory by device index, that of the host under `HOST_OWNER`.

    Args:
        assignment: Layers that each device computes and owns.
        model: Costs of the layers.
        cluster: Devices.
        peak_live: Most micro-batches alive at once in each stage of each replica.
        seconds: Seconds of the passes of each replica; None if all are equal.
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
        # Gradients of other devices stay on the owner until it adds them.
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
            # Gradients of the other devices of the machine; without `waits` also its own, which
            # wait for the other machines.
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
                # Stage k defers the weight gradients of k micro-batches, plus the current one;
                # stage 0 defers none.
                num_deferred = min(number, alive - 1) + 1
                deferred = num_deferred * deferred_bytes(span, model) * replica.micro_batch
                needs[span.device] = needs[span.device].plus(activations=deferred)
    # Devices that own variables but run no stage only apply updates.
    for owner in needs:
        more = updating.get(owner, 0)
        needs[owner] = needs[owner].plus(gradients=adding[owner], workspace=more)
    return dict(needs)


def _devices_at_once(assignment: Assignment, mode: ExecutionMode) -> set[int]:
    """Return the devices that compute a whole replica in one call beside other replicas."""
    if mode.is_alone or any(mode.recompute):
        return set()
    return {replica.spans[0].device for replica in assignment.replicas if not is_in_parts(replica)}


def _waiting(
    assignment: Assignment,
    model: ModelCosts,
    at_once: Set[int],
    arrival: GradientArrival,
    *,
    waits: bool,
) -> dict[int, float]:
    """Return the bytes of gradients that wait on devices which compute in one call.

    Only the excess over memory already freed by fetched weights of later layers: a fetched weight
    is dropped after the backward pass of its layer::

        backward passes       c owned    b fetched    a owned
        beyond fetched          + c         - b         + a        the largest prefix sum counts

    Args:
        assignment: Layers that each device computes and owns.
        model: Costs of the layers.
        at_once: Devices that compute in one call.
        arrival: Number of gradients that arrive while an owner still computes.
        waits: Whether no gradient is sent before the device has computed all of them.
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
    unsent: dict[int, int] = defaultdict(int)
    most: dict[int, float] = defaultdict(float)
    total = 0
    for layer, devices, owner in reversed(
        list(zip(model.layers, holders, assignment.owners, strict=True))
    ):
        for device in at_once - {owner}:
            # On a slow link, gradients of later layers are still here when this one is computed.
            most[device] = max(most[device], unsent[device])
            unsent[device] += layer.other_gradient_bytes
        if owner in at_once:
            # An owner fetches no copy, so no buffer is freed for these gradients.
            more = layer.gradient_bytes - fused_gradients(layer)
            most[owner] = max(most[owner], own[owner] + more - total)
            if arrival.num_at(owner, devices) < len(devices) - 1:
                own[owner] += layer.gradient_bytes
                most[owner] = max(most[owner], own[owner] - total)
            # The weight is owned, so its memory is not freed.
            own[owner] += layer.weight_bytes
        total += layer.weight_bytes
    return most


class GradientArrival:
    """Number of gradients of a layer that arrive on its owner while the owner still computes.

    With a schedule, gradient sums are sent at the end of the step, and all of them may arrive
    while the owner still computes. Otherwise each gradient is sent as soon as it is computed: those
    of faster devices arrive before the owner has computed its own.

    Args:
        assignment: Layers that each device computes and owns.
        seconds: Seconds of the passes of each replica; None if all are equal.
        waits: Whether no gradient is sent before the device has computed all of them.
    """

    def __init__(
        self, assignment: Assignment, seconds: Sequence[float] | None, *, waits: bool
    ) -> None:
        self._waits = waits
        times = seconds or [1.0] * len(assignment.replicas)
        self._seconds: dict[int, float] = {}
        for replica, passes_seconds in zip(assignment.replicas, times, strict=True):
            for span in replica.spans:
                before = self._seconds.get(span.device, 0.0)
                self._seconds[span.device] = max(before, passes_seconds)
        self._sorted: dict[tuple[int, ...], list[float]] = {}

    def num_at(self, owner: int, devices: tuple[int, ...]) -> int:
        """Return the number of gradients of a layer that are early on its owner.

        Args:
            owner: Owner of the layer.
            devices: Devices that compute the layer.
        """
        others = len(devices) - (owner in devices)
        if self._waits or owner not in devices:
            return others
        if devices not in self._sorted:
            self._sorted[devices] = sorted(self._seconds[device] for device in devices)
        return bisect.bisect_left(self._sorted[devices], self._seconds[owner] * _AS_FAST)


_AS_FAST = 0.999
"""A device is faster than another if it takes less than this fraction of the other's time."""


def shortages(needs: Mapping[int, MemoryPrediction], cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Yield each device without enough memory, with the missing bytes."""
    for device, needed in needs.items():
        if device == HOST_OWNER:
            sizes = [machine.host_memory_bytes for machine in cluster.machines]
            memory = min((size for size in sizes if size is not None), default=None)
        else:
            memory = cluster.devices[device].memory_bytes
        if memory is not None and needed.total > memory:
            yield device, needed.total - memory
