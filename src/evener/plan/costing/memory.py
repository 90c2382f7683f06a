"""The memory of every device at the worst moment of a step, from the costs of its layers."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
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
from evener.plan.costing.meetings import is_in_parts, parts_meet
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
    needs: dict[int, MemoryPrediction] = defaultdict(MemoryPrediction)
    holders = holders_of(assignment.replicas, len(model.layers))
    way = StepWay.of(assignment, model)
    early = _Early(assignment, seconds, has_order=way.has_order)
    for replica, live in zip(assignment.replicas, peak_live, strict=True):
        for span, alive in zip(replica.spans, live, strict=True):
            accumulates = replica.num_micro_batches > 1
            stage = stage_memory(span, model, way, accumulates=accumulates)
            worst = stage.worst(replica, alive)
            needs[span.device] = needs[span.device].plus(**dataclasses.asdict(worst))
    shared: dict[tuple[int, ...], list[LayerCosts]] = defaultdict(list)
    updating: dict[int, int] = defaultdict(int)
    adding: dict[int, int] = defaultdict(int)
    for layer, devices, owner in zip(model.layers, holders, assignment.owners, strict=True):
        if owner == EACH_MACHINE:
            shared[devices].append(layer)
            continue
        # The sums of the other devices lie on the owner until they are added.
        num_early, num_others = early.num_at(owner, devices), len(devices) - (owner in devices)
        needs[owner] = needs[owner].plus(
            variables=layer.owned_bytes, gradients=layer.gradient_bytes * num_early
        )
        adding[owner] = max(adding[owner], layer.gradient_bytes * (num_others - num_early))
        if owner not in devices:
            updating[owner] = max(updating[owner], layer.update_bytes)
    for devices, layers in shared.items():
        variables = sum(layer.owned_bytes for layer in layers)
        weights = sum(layer.weight_bytes for layer in layers)
        gradients = sum(layer.gradient_bytes for layer in layers)
        for here in by_machine(devices, cluster).values():
            for device in here:
                needs[device] = needs[device].plus(
                    variables=variables / len(here),
                    fetched=-weights / len(here),
                    gradients=gradients * (len(here) - 1) / len(here),
                )
    for owner in needs:
        needs[owner] = needs[owner].plus(gradients=adding[owner], workspace=updating[owner])
    return dict(needs)


class _Early:
    """How many gradients of a layer lie on its owner while that still computes.

    Where the calls of a step have an order, sums leave at its end, and those of faster devices may
    be there early. Else each gradient leaves as soon as it is there, and a device that is as fast
    as the owner sends it when the owner has its own.

    Args:
        assignment: Who computes and owns.
        seconds: How long the passes of each replica take; None if they are equally long.
        has_order: Whether the calls of the step have an order.
    """

    def __init__(
        self, assignment: Assignment, seconds: Sequence[float] | None, *, has_order: bool
    ) -> None:
        self._waits = has_order
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


def has_order(replicas: Sequence[ReplicaAssignment], recompute: Sequence[bool]) -> bool:
    """Whether the calls of a step have an order: then each keeps what it is given to its end."""
    return any(recompute) or any(map(is_in_parts, replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWay:
    """How a step is computed, as far as the memory of its stages depends on it.

    Args:
        recompute: Whether the activations of each layer are computed again.
        owners: Of each layer; None if all weights are fetched.
        has_order: Whether its calls have an order. Then what a call is given stays to its end.
        meets: Whether parts of the batch meet at layers of the whole batch.
        is_alone: Whether one replica computes everything.
    """

    recompute: tuple[bool, ...]
    owners: tuple[int, ...] | None
    has_order: bool
    meets: bool
    is_alone: bool

    @classmethod
    def of(cls, assignment: Assignment, model: ModelCosts) -> StepWay:
        """Return the way of an assignment."""
        return cls(
            recompute=assignment.recompute,
            owners=assignment.owners,
            has_order=has_order(assignment.replicas, assignment.recompute),
            meets=parts_meet(assignment, model),
            is_alone=len(assignment.replicas) == 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a stage has in memory while it computes the backward pass of a layer, or at the end.

    Args:
        fetched: Bytes of weights of other owners.
        gradients: Bytes.
        kept: Bytes per sample of the micro-batch at hand.
        again: Bytes per sample of the micro-batch at hand: activations that are computed again,
            gradients of activations.
        layer: That is computed; None at the end.
        updating: Bytes of what is needed for an update.
    """

    fetched: float = 0.0
    gradients: float = 0.0
    kept: float = 0.0
    again: float = 0.0
    layer: LayerCosts | None = None
    updating: float = 0.0

    def workspace(self, size: float) -> float:
        """Return the bytes that only the pass of this moment needs, for so many samples."""
        computing = 0.0 if self.layer is None else self.layer.workspace(size)
        return computing + self.again * size + self.updating


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What a stage needs besides its owned variables.

    Args:
        samples: Bytes per sample that all micro-batches need for the whole step.
        waiting: Bytes per sample of every other micro-batch that is alive.
        met: Bytes per sample of every other micro-batch, because all of them meet at a layer.
        moments: Among which the worst one counts.
    """

    samples: float
    waiting: float
    met: float
    moments: tuple[Moment, ...]

    def worst(self, replica: ReplicaAssignment, alive: int) -> MemoryPrediction:
        """Return what is needed at the worst moment.

        Args:
            replica: Of the stage.
            alive: The most micro-batches that are alive there at once.
        """
        count, size = replica.num_micro_batches, replica.micro_batch
        return max(
            (self._at(moment, count, alive, size) for moment in self.moments),
            key=lambda one: one.fetched + one.gradients + one.activations + one.workspace,
        )

    def total(self, count: int, alive: int, size: float) -> float:
        """Return the bytes of the worst moment, for so many micro-batches of some samples."""
        others = self.waiting * max(0, alive - 1) + self.met * (count - 1)
        most = max(
            one.fetched
            + one.gradients
            + (0.0 if one.layer is None else others + one.kept) * size
            + one.workspace(size)
            for one in self.moments
        )
        return most + self.samples * count * size

    def _at(self, moment: Moment, count: int, alive: int, size: float) -> MemoryPrediction:
        others = self.waiting * max(0, alive - 1) + self.met * (count - 1)
        kept = 0.0 if moment.layer is None else others + moment.kept
        return MemoryPrediction(
            fetched=moment.fetched,
            gradients=moment.gradients,
            activations=(self.samples * count + kept) * size,
            workspace=moment.workspace(size),
        )


def stage_memory(span: Span, model: ModelCosts, way: StepWay, *, accumulates: bool) -> StageMemory:
    """Return what a stage needs, besides its owned variables.

    ::

        calls in an order    what a call is given stays to its end, and so do its results
        no order             activations go with the last backward pass that needs them,
                             gradients with the update of their weights

    Args:
        span: The stage.
        model: The costs of the layers.
        way: How the step is computed.
        accumulates: Whether gradients of several micro-batches are added up.
    """
    layers = [model.layers[place] for place in span.layers]
    joint = span.end == len(model.layers) and not any(way.recompute) and not way.meets
    kept = [
        entering_bytes(model, place) if way.recompute[place] else layer.activation_bytes
        for place, layer in zip(span.layers, layers, strict=True)
    ]
    last_meeting = model.last_meeting if way.meets else -1
    entering = entering_bytes(model, span.first) if span.first else 0.0
    met = sum(one for place, one in zip(span.layers, kept, strict=True) if place <= last_meeting)
    met += entering if span.first <= last_meeting else 0.0
    # All samples of a step are sent at its begin: nothing tells them to wait.
    samples = 0.0 if span.first else model.input_bytes
    if way.meets:
        # The parts meet at one layer at a time.
        samples += max(layer.meeting_bytes for layer in layers)
    return StageMemory(
        samples=samples,
        waiting=entering + sum(kept) - met,
        met=met,
        moments=tuple(_Moments(span, model, way, kept, joint=joint, accumulates=accumulates)),
    )


class _Moments:
    """The moments of a stage.

    Args:
        span: The stage.
        model: The costs of the layers.
        way: How the step is computed.
        kept: Of each layer of the stage, bytes per sample.
        joint: Whether both passes are computed in one call.
        accumulates: Whether gradients of several micro-batches are added up.
    """

    def __init__(
        self,
        span: Span,
        model: ModelCosts,
        way: StepWay,
        kept: Sequence[float],
        *,
        joint: bool,
        accumulates: bool,
    ) -> None:
        self._span, self._model, self._way = span, model, way
        self._layers = model.layers
        self._accumulates = accumulates
        self._updates_at_once = way.is_alone and not way.has_order and not model.updates_wait
        entering = entering_bytes(model, span.first) if span.first else 0.0
        self._kept = [entering + one for one in itertools.accumulate(kept)]
        if not joint:
            self._kept = [self._kept[-1]] * len(kept)
        self._fetched = sum(map(self._fetched_bytes, span.layers))

    def __iter__(self) -> Iterator[Moment]:
        """Yield the moments in their order."""
        all_gradients = sum(self._layers[place].gradient_bytes for place in self._span.layers)
        gradients = all_gradients if self._accumulates else 0
        for number, place in reversed(list(enumerate(self._span.layers))):
            layer = self._layers[place]
            gradients += layer.gradient_bytes
            there, updating = gradients, 0
            if self._updates_at_once:
                # Kernels wait in a queue: the update of the layer behind may not be done yet.
                behind = self._layers[place + 1 : self._span.end][:1]
                there = layer.gradient_bytes + sum(one.gradient_bytes for one in behind)
                updating = sum(one.update_bytes for one in behind)
            again = layer.activation_bytes if self._way.recompute[place] else 0.0
            yield Moment(
                fetched=self._fetched,
                gradients=there,
                kept=self._kept[number],
                again=again + self._between(place),
                layer=layer,
                updating=updating,
            )
        owned = filter(self._is_owned, self._span.layers)
        yield Moment(
            gradients=0 if self._updates_at_once else all_gradients,
            updating=max((self._layers[place].update_bytes for place in owned), default=0),
        )

    def _is_owned(self, place: int) -> bool:
        owners = self._way.owners
        return owners is not None and owners[place] in (self._span.device, EACH_MACHINE)

    def _fetched_bytes(self, place: int) -> int:
        owners = self._way.owners
        is_there = owners is not None and owners[place] == self._span.device
        return 0 if is_there else self._layers[place].weight_bytes

    def _between(self, place: int) -> float:
        """Return the bytes per sample of gradients of activations in the pass of a layer.

        Those that it makes and reads and, of kernels that wait in a queue, those that the layer
        behind has read. What crosses stages is there twice, in each direction: what comes arrives
        before its call, what goes leaves after it.
        """
        first, end = self._span.first, self._span.end
        inside = [k for k in (place, place + 1, place + 2) if first < k < end]
        crossing = [k for k in (first, end) if 0 < k < len(self._layers)]
        return sum(entering_bytes(self._model, k) for k in (*inside, *crossing, *crossing))


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
