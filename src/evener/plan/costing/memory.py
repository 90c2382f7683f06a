"""The memory of every device at the worst moment of a step, from the costs of its layers."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evener.plan.costing.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    by_machine,
    holders_of,
)
from evener.plan.costing.meetings import parts_meet
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
) -> dict[int, MemoryPrediction]:
    """Return what every device needs, the host under `HOST_OWNER`.

    Args:
        assignment: What every device computes and owns.
        model: What it needs for that.
        cluster: The devices.
        peak_live: For each replica, and each of its stages, the most micro-batches that are
            alive there at once.
    """
    needs: dict[int, MemoryPrediction] = defaultdict(MemoryPrediction)
    for replica, live in zip(assignment.replicas, peak_live, strict=True):
        for span, alive in zip(replica.spans, live, strict=True):
            needs[span.device] = needs[span.device].plus(
                **span_memory(span, replica, alive, assignment, model)
            )
    holders = holders_of(assignment.replicas, len(model.layers))
    shared: dict[tuple[int, ...], list[LayerCosts]] = defaultdict(list)
    for layer, devices, owner in zip(model.layers, holders, assignment.owners, strict=True):
        if owner == EACH_MACHINE:
            shared[devices].append(layer)
            continue
        # The sums of the other devices lie on the owner until they are added.
        arriving = len(devices) - (owner in devices)
        needs[owner] = needs[owner].plus(
            variables=layer.owned_bytes, gradients=layer.weight_bytes * arriving
        )
    for devices, layers in shared.items():
        variables = sum(layer.owned_bytes for layer in layers)
        weights = sum(layer.weight_bytes for layer in layers)
        for here in by_machine(devices, cluster).values():
            for device in here:
                needs[device] = needs[device].plus(
                    variables=variables / len(here),
                    fetched=-weights / len(here),
                    gradients=weights * (len(here) - 1) / len(here),
                )
    return dict(needs)


def span_memory(
    span: Span,
    replica: ReplicaAssignment,
    alive: int,
    assignment: Assignment,
    model: ModelCosts,
) -> Mapping[str, float]:
    """Return the bytes of a stage, besides those of its owned variables."""
    layers = [model.layers[place] for place in span.layers]
    kept = workspace = 0.0
    last_meeting = model.last_meeting if assignment.meets else -1

    def living(place: int) -> int:
        # All micro-batches wait for one another at a meeting, also for those of later layers.
        return replica.num_micro_batches if place <= last_meeting else alive

    for place, layer in zip(span.layers, layers, strict=True):
        if assignment.recompute[place]:
            # Its inputs are kept; its own activations are there while its gradient is computed.
            kept += entering_bytes(model, place) * living(place)
            workspace = max(workspace, layer.workspace_bytes + layer.activation_bytes)
        else:
            kept += layer.activation_bytes * living(place)
            workspace = max(workspace, layer.workspace_bytes)
    if span.first == 0:
        # All samples of a step are sent at its begin: nothing tells them to wait.
        kept += model.input_bytes * replica.num_micro_batches
    else:
        kept += entering_bytes(model, span.first) * living(span.first)
    if parts_meet(assignment, model):
        # The parts meet at one layer at a time.
        kept += max(layer.meeting_bytes for layer in layers) * replica.num_micro_batches
    gradients = sum(layer.weight_bytes for layer in layers)
    if replica.num_micro_batches > 1:
        # A call hands over all gradients of a micro-batch at once; then they are added to the sums.
        gradients *= 2
    return {
        "fetched": sum(
            model.layers[place].weight_bytes
            for place in span.layers
            if assignment.owners[place] != span.device
        ),
        "gradients": gradients,
        "activations": kept * replica.micro_batch,
        "workspace": (workspace + _on_the_way(span, model)) * replica.micro_batch,
    }


def _on_the_way(span: Span, model: ModelCosts) -> float:
    """Return the bytes per sample that come from the stages beside one, or go to them.

    In each direction a micro-batch: what comes arrives before its call, what goes leaves after it.
    """
    is_last = span.end == len(model.layers)
    before = entering_bytes(model, span.first) if span.first else 0.0
    return 2 * (before + (0.0 if is_last else entering_bytes(model, span.end)))


def entering_bytes(model: ModelCosts, place: int) -> float:
    """Return the bytes per sample that a layer reads of the layers before it."""
    return model.layers[place - 1].boundary_bytes if place else model.input_bytes


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
