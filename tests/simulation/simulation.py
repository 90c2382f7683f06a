"""A step of a plan on a cluster that need not be here: when everything runs, and what is in memory.

::

    gpu:0   [ F0 ][ F1 ]           [ B0 ][ B1 ][ update ]
    link        a0 -->  a1 -->  <-- g0   <-- g1
    gpu:1         [ F0 ][ B0 ][ F1 ][ B1 ][ update ]

There is no clock and no randomness: the same plan and profile give the same simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from evener.plan.plan import Plan
from evener.planner.assignment import Assignment, assignment_of
from evener.planner.step_time import step_has_barriers
from evener.profile import CostProfile
from simulation.activities import COMPUTING, ActivityKind, Server, Span, StepGraph, run
from simulation.barriers import add_passes_with_barriers
from simulation.passes import PassBuilder
from simulation.weights import LayerProgress, WeightBuilder, owned_bytes


class SimulatedEvent(NamedTuple):
    """Computation of a device, in seconds since the start of the step."""

    begin_seconds: float
    end_seconds: float
    kind: ActivityKind
    what: str


class SimulatedTransfer(NamedTuple):
    """Transfer, in seconds since the start of the step.

    Source and target are device indices in the cluster, or `HOST_OWNER`.
    """

    begin_seconds: float
    end_seconds: float
    what: str
    source: int
    target: int
    num_bytes: float


class MemoryPoint(NamedTuple):
    """The bytes in use from a moment on."""

    seconds: float
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    step_seconds: float
    devices: tuple[tuple[SimulatedEvent, ...], ...]
    transfers: tuple[SimulatedTransfer, ...]
    memory: Mapping[int, tuple[MemoryPoint, ...]] = field(hash=False)
    busy_seconds: Mapping[Server, float] = field(hash=False)

    @property
    def peak_bytes(self) -> dict[int, float]:
        """The most bytes in use at once, by place of the device."""
        return {
            device: max(point.num_bytes for point in points)
            for device, points in self.memory.items()
        }

    @property
    def utilization(self) -> tuple[float, ...]:
        """For each device the fraction of the step in which it computes."""
        return tuple(
            sum(event.end_seconds - event.begin_seconds for event in events) / self.step_seconds
            if self.step_seconds
            else 0.0
            for events in self.devices
        )


def simulate_plan(plan: Plan, profile: CostProfile, batch_size: int) -> Simulation:
    """Return a simulated step of a plan.

    >>> from evener.plan import Plan
    >>> from evener.clusters import cluster_named, datasheet_profile, model_named
    >>> profile = datasheet_profile(model_named("bert-large-128"), cluster_named("rtx3090-rtx3060"))
    >>> plan = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3, 1])
    >>> step = simulate_plan(plan, profile, 64)
    >>> 0.3 < step.step_seconds < 0.5
    True
    """
    return simulate(assignment_of(plan, profile.model, profile.cluster, batch_size), profile)


def simulate(assignment: Assignment, profile: CostProfile) -> Simulation:
    """Return a simulated step of an assignment.

    Weights leave their owners when the step begins, each layer waits for its own. Gradients leave
    when the last micro-batch is through their layer. An owner updates a layer when all of its
    gradients are there and the owner has no pass left to compute. Where each machine has variables
    of its own (`EACH_MACHINE`), weights and gradients go round rings. At a barrier of all parts of
    the batch, all passes behind it wait for all before it.
    """
    graph = StepGraph()
    progress = LayerProgress()
    weights = WeightBuilder(graph, assignment, profile, progress)
    weights.fetch()
    builders = [
        PassBuilder(graph, assignment, number, profile, progress)
        for number in range(len(assignment.replicas))
    ]
    if step_has_barriers(assignment, profile.model):
        add_passes_with_barriers(graph, assignment, profile, builders)
    else:
        for builder in builders:
            builder.add_all()
    weights.send_gradients()
    times = run(graph.activities)
    computed, transfers = _events(graph, times, len(profile.cluster.devices))
    return Simulation(
        step_seconds=max(span.end for span in times) + profile.step_overhead_seconds,
        devices=computed,
        transfers=transfers,
        memory=_memory(graph, times, owned_bytes(assignment, profile)),
        busy_seconds=_busy(graph),
    )


def _events(
    graph: StepGraph, times: Sequence[Span], num_devices: int
) -> tuple[tuple[tuple[SimulatedEvent, ...], ...], tuple[SimulatedTransfer, ...]]:
    computed: list[list[SimulatedEvent]] = [[] for _ in range(num_devices)]
    transfers: list[SimulatedTransfer] = []
    for activity, (begin, end) in zip(graph.activities, times, strict=True):
        if activity.source is not None:
            transfers.append(
                SimulatedTransfer(
                    begin, end, activity.what, activity.source, activity.device, activity.num_bytes
                )
            )
        elif activity.kind in COMPUTING and activity.device >= 0:
            event = SimulatedEvent(begin, end, activity.kind, activity.what)
            computed[activity.device].append(event)
    transfers.sort(key=lambda transfer: transfer.begin_seconds)
    return (
        tuple(tuple(sorted(events, key=lambda event: event[:2])) for events in computed),
        tuple(transfers),
    )


def _memory(
    graph: StepGraph, times: Sequence[Span], owned: Mapping[int, float]
) -> dict[int, tuple[MemoryPoint, ...]]:
    """Return the bytes of every device over time."""
    changes: dict[int, list[tuple[float, float]]] = {device: [] for device in owned}
    for device, num_bytes, begin, end in graph.holds:
        changes.setdefault(device, []).append((times[begin].begin, num_bytes))
        changes[device].append((times[end].end, -num_bytes))
    return {device: _points(owned.get(device, 0.0), listed) for device, listed in changes.items()}


def _points(at_begin: float, changes: Iterable[tuple[float, float]]) -> tuple[MemoryPoint, ...]:
    """Return the bytes after each moment of change; at one moment, what ends goes first."""
    points = [MemoryPoint(0.0, at_begin)]
    now = at_begin
    for seconds, change in sorted(changes):
        now += change
        if points[-1].seconds == seconds:
            points.pop()
        if not points or points[-1].num_bytes != now:
            points.append(MemoryPoint(seconds, now))
    return tuple(points)


def _busy(graph: StepGraph) -> dict[Server, float]:
    busy: dict[Server, float] = {}
    for activity in graph.activities:
        for server, seconds in activity.uses:
            if seconds > 0:
                busy[server] = busy.get(server, 0.0) + seconds
    return busy
