"""Costs of a group of devices as one replica: cuts, and time and memory by number of samples."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from evener.cost_model.assignment import (
    ReplicaAssignment,
    Span,
)
from evener.cost_model.barriers import is_in_parts, phase_seconds, phases_of
from evener.cost_model.exchange import WeightSeconds
from evener.cost_model.passes import passes_are_separate
from evener.cost_model.stage_memory import ExecutionMode, StageMemory, stage_memory
from evener.planner.cuts import best_cuts
from evener.planner.groupings import Group
from evener.profile import CostProfile, Curve

_MOST_STAGES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Replica without its devices and its number of samples.

    Args:
        cuts: Index of the first layer of each stage, and the number of layers.
        num_micro_batches: Micro-batches per step, at least 1.
        in_flight: Most micro-batches that are alive at once, at least 1.
    """

    cuts: tuple[int, ...]
    num_micro_batches: int
    in_flight: int

    @classmethod
    def of(cls, replica: ReplicaAssignment) -> Shape:
        """Return the shape of a replica."""
        return cls(
            cuts=(0, *(span.end for span in replica.spans)),
            num_micro_batches=replica.num_micro_batches,
            in_flight=replica.in_flight,
        )

    def assigned(self, group: Group, samples: int) -> ReplicaAssignment:
        """Return the replica with a number of samples."""
        num_micro_batches = min(self.num_micro_batches, samples)
        return ReplicaAssignment(
            samples=samples,
            spans=self.spans(group),
            num_micro_batches=num_micro_batches,
            in_flight=min(self.in_flight, num_micro_batches),
        )

    def spans(self, group: Group) -> tuple[Span, ...]:
        """Return the stages on the devices of a group."""
        return tuple(
            Span(device, first, end)
            for device, (first, end) in zip(group, itertools.pairwise(self.cuts), strict=True)
        )


class GroupCosts:
    """Costs of groups for one profile and one choice of recomputed layers.

    Args:
        profile: Costs of the layers.
        recompute: Whether each layer is recomputed.
    """

    def __init__(self, profile: CostProfile, recompute: tuple[bool, ...]) -> None:
        self.profile = profile
        self.recompute = recompute
        self._layers = profile.model.layers
        has_barriers = profile.model.last_barrier >= 0
        self._phases = phases_of(self._layers) if has_barriers else []
        # Bytes that the first k layers need more if they are owned instead of fetched.
        more = (layer.owned_bytes - layer.weight_bytes for layer in self._layers)
        self._own = list(itertools.accumulate(more, initial=0))
        self._total = functools.cache(self._curves)
        self._route = functools.cache(self._links_of)
        self._memory_of = functools.cache(self._memory_of_span)
        self._sums = functools.cache(self._sums_of_type)
        # The same replica occurs in several groupings, rounds and owner rules.
        self._passes = functools.cache(self._makespan)
        self._stages = functools.cache(self._curves_of_stages)
        self._adding = functools.cache(self._adding_of_stages)

    def seconds(self, group: Group, shape: Shape, samples: int, exchange: WeightSeconds) -> float:
        """Return the time of a step, by the formula for pipelines."""
        makespan, forwards, backwards = self._passes(group, shape, samples)
        arriving = max(0.0, exchange.arrival_seconds - forwards)
        leaving = max(0.0, exchange.departure_seconds - backwards)
        return makespan + arriving + leaving + exchange.update_seconds

    def compute_seconds(self, group: Group, shape: Shape, samples: int) -> float:
        """Return the time of a step without the exchange and update of weights."""
        return self._passes(group, shape, samples)[0]

    def _makespan(self, group: Group, shape: Shape, samples: int) -> tuple[float, float, float]:
        """Return the time of all passes, and of both passes of one micro-batch."""
        if samples == 0:
            return 0.0, 0.0, 0.0
        count = min(shape.num_micro_batches, samples)
        size = samples / count
        forward, both, stages = self._stages(group, shape.cuts)
        # Every micro-batch but the first adds its gradients to those before.
        added = 1 - 1 / count
        forwards = forward(size)
        total = both(size) + added * sum(self._adding(group, shape.cuts))
        longest = max(stage(size) + added * adding for stage, adding in stages)
        if len(group) == 1:
            makespan = count * total
        else:
            once = total + 2 * self._crossing(group, shape.cuts, size)
            in_flight = min(shape.in_flight, count)
            makespan = once + (count - 1) * max(longest, once / in_flight)
        replica = shape.assigned(group, samples)
        if self._phases and is_in_parts(replica):
            phases = sum(
                phase_seconds(phase, replica, self.recompute, self.profile)
                for phase in self._phases
            )
            makespan = max(makespan, phases)
        return makespan, forwards, total - forwards

    def _curves_of_stages(
        self, group: Group, cuts: tuple[int, ...]
    ) -> tuple[Curve, Curve, tuple[tuple[Curve, float], ...]]:
        """Return the sum of forward passes, that of all passes, and the costs of each stage.

        The costs of a stage are the curve of its passes and the seconds of one gradient addition.
        """
        found = [
            self._total(self._type(device), first, end)
            for device, (first, end) in zip(group, itertools.pairwise(cuts), strict=True)
        ]
        adding = self._adding(group, cuts)
        stages = tuple(
            dict.fromkeys((Curve.total(p), a) for p, a in zip(found, adding, strict=True))
        )
        if len(stages) > _MOST_STAGES:
            # For many stages, one curve of their maxima; it is exact at the measured points.
            sample_counts = sorted({samples for stage, _ in stages for samples, _ in stage.points})
            most = Curve(tuple((n, max(stage(n) for stage, _ in stages)) for n in sample_counts))
            stages = ((most, max(adding)),)
        forward = Curve.total(passes for passes, _ in found)
        return forward, Curve.total(seconds for passes in found for seconds in passes), stages

    def _adding_of_stages(self, group: Group, cuts: tuple[int, ...]) -> tuple[float, ...]:
        return tuple(
            math.fsum(
                layer.accumulate_seconds
                for layer in self.profile.times[self._type(device)][first:end]
            )
            for device, (first, end) in zip(group, itertools.pairwise(cuts), strict=True)
        )

    def most_samples(
        self,
        group: Group,
        shape: Shape,
        limit: int,
        owned: Mapping[int, float],
        *,
        is_alone: bool,
    ) -> int:
        """Return the most samples that fit into the memory of a group's devices, up to a limit.

        Args:
            group: Devices, stage by stage.
            shape: Shape of the replica.
            limit: Largest number of samples to try.
            owned: Bytes that each device needs for the variables that it owns, beyond fetching all
                weights.
            is_alone: Whether this is the only group.
        """
        # The key is True if the samples do not fit, and stays True for more.
        return bisect.bisect_left(
            range(1, limit + 1),
            True,
            key=lambda samples: any(
                left < 0
                for left in self.room(group, shape, samples, owned, is_alone=is_alone).values()
            ),
        )

    def room(
        self,
        group: Group,
        shape: Shape,
        samples: int,
        owned: Mapping[int, float],
        *,
        is_alone: bool,
    ) -> dict[int, float]:
        """Return the free bytes of the devices of a group that have a memory limit.

        The arguments are those of `most_samples`.
        """
        left: dict[int, float] = {}
        num_micro_batches = min(shape.num_micro_batches, samples)
        in_flight = min(shape.in_flight, num_micro_batches)
        size = samples / num_micro_batches
        spans = zip(group, itertools.pairwise(shape.cuts), strict=True)
        for stage, (device, (first, end)) in enumerate(spans):
            memory = self.profile.cluster.devices[device].memory_bytes
            if memory is not None:
                memory_of = self._memory_of(first, end, num_micro_batches > 1, is_alone)
                alive = max(1, min(num_micro_batches, in_flight - stage))
                needed = memory_of.weights + memory_of.total(num_micro_batches, alive, size)
                left[device] = memory - needed - owned.get(device, 0.0)
        return left

    def cut(
        self, group: Group, num_micro_batches: int, size: float, own_part: float | None
    ) -> tuple[int, ...] | None:
        """Return the best cuts of a group; None if none fit into the memory of its devices.

        Args:
            group: Devices, stage by stage.
            num_micro_batches: Micro-batches of the replica.
            size: Samples of a micro-batch.
            own_part: Fraction of its variables that each stage owns; None to ignore memory.
        """
        num_stages, num_layers = len(group), len(self._layers)
        if num_stages == 1:
            return (0, num_layers)
        cluster = self.profile.cluster
        in_flight = min(num_stages, num_micro_batches)

        separate, fused = (
            [self._sums(self._type(device), size, is_separate) for device in group]
            for is_separate in (True, False)
        )

        def seconds(stage: int, first: int, end: int) -> float:
            sums = separate if passes_are_separate(end, self.recompute) else fused
            return sums[stage][end] - sums[stage][first]

        def fits(stage: int, first: int, end: int) -> bool:
            memory = cluster.devices[group[stage]].memory_bytes
            if memory is None or own_part is None:
                return True
            alive = max(1, min(num_micro_batches, in_flight - stage))
            own = (self._own[end] - self._own[first]) * own_part
            needed = self._memory_of(first, end, num_micro_batches > 1, False)
            total = needed.weights + needed.total(num_micro_batches, alive, size)
            return own + total <= memory

        return best_cuts(num_stages, num_layers, num_micro_batches, seconds, fits)

    def _type(self, device: int) -> str:
        return self.profile.cluster.devices[device].type

    def _curves(self, type_name: str, first: int, end: int) -> tuple[Curve, Curve]:
        times, separate = self.profile.times[type_name], passes_are_separate(end, self.recompute)
        return (
            Curve.total(layer.forward for layer in times[first:end]),
            Curve.total(
                curve
                for layer, is_recomputed in zip(
                    times[first:end], self.recompute[first:end], strict=True
                )
                for curve in layer.backward_curves(recompute=is_recomputed, separate=separate)
            ),
        )

    def _sums_of_type(self, type_name: str, size: float, separate: bool) -> list[float]:
        """Return the seconds of the first k layers, forward and backward, for each k."""
        times = self.profile.times[type_name]
        return list(
            itertools.accumulate(
                (
                    layer.forward(size)
                    + layer.backward_seconds(size, recompute=is_recomputed, separate=separate)
                    for layer, is_recomputed in zip(times, self.recompute, strict=True)
                ),
                initial=0.0,
            )
        )

    def _crossing(self, group: Group, cuts: tuple[int, ...], size: float) -> float:
        """Return the transfer seconds of a micro-batch of ``size`` samples between all stages."""
        latency, per_sample = self._route(group, cuts)
        return latency + per_sample * size

    def _links_of(self, group: Group, cuts: tuple[int, ...]) -> tuple[float, float]:
        latency = per_sample = 0.0
        for (source, target), cut in zip(itertools.pairwise(group), cuts[1:], strict=False):
            link = self.profile.cluster.link(source, target)
            latency += link.latency_seconds
            per_sample += self._layers[cut - 1].boundary_bytes / link.bytes_per_second
        return latency, per_sample

    def _memory_of_span(
        self, first: int, end: int, accumulates: bool, is_alone: bool
    ) -> StageMemory:
        """Return the memory of a stage that owns no variables."""
        model = self.profile.model
        is_whole = end - first == len(self._layers)
        in_order = accumulates or any(self.recompute) or not is_whole
        mode = ExecutionMode(
            recompute=self.recompute,
            has_order=in_order,
            waits=in_order or model.updates_wait or is_alone,
            has_barriers=model.last_barrier >= 0
            and not (is_alone and is_whole and not accumulates),
            is_alone=is_alone,
        )
        return stage_memory(Span(0, first, end), model, mode, accumulates=accumulates)
