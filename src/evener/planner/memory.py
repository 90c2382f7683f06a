"""Peak memory of every device in a step: what a stage holds at each moment, and what owners add."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from evener.plan.profile import Cluster, LayerCosts, ModelCosts
from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    by_machine,
    holders_of,
)
from evener.planner.step_time import is_in_parts, step_has_barriers

_AS_FAST = 0.999
"""A device is faster than another if it takes less than this fraction of the other's time."""


def gradients_wait(
    model: ModelCosts, replicas: Sequence[ReplicaAssignment], recompute: Sequence[bool]
) -> bool:
    """Whether no gradient is sent before the device has computed all of them."""
    return model.updates_wait or any(recompute) or any(map(is_in_parts, replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionMode:
    """Execution mode of a step, as far as the memory of its stages depends on it."""

    recompute: tuple[bool, ...]  # Whether the activations of each layer are recomputed
    # Whether the calls follow a schedule; each then holds its inputs until it ends.
    has_order: bool
    # Whether all gradients of a device may be alive at once. A single device applies its updates in
    # any order, maybe all at the end
    waits: bool
    has_barriers: bool  # Whether the step has barriers
    is_alone: bool  # Whether one replica computes everything

    @property
    def is_at_once(self) -> bool:
        """Whether each of several devices computes its passes in one call without a schedule."""
        return not (self.is_alone or self.waits or self.has_order)

    @classmethod
    def of(cls, assignment: Assignment, model: ModelCosts) -> ExecutionMode:
        is_alone = len(assignment.replicas) == 1
        return cls(
            recompute=assignment.recompute,
            has_order=any(assignment.recompute) or any(map(is_in_parts, assignment.replicas)),
            waits=is_alone or gradients_wait(model, assignment.replicas, assignment.recompute),
            has_barriers=step_has_barriers(assignment, model),
            is_alone=is_alone,
        )


class PassMemory(NamedTuple):
    layer: LayerCosts  # Costs of the layer
    gradients: float  # Bytes of weight gradients
    kept: float  # Bytes per sample of the current micro-batch that later passes read
    # Bytes per sample of the current micro-batch that only this pass needs: gradients of
    # activations, and recomputed activations
    passing: float
    is_fused: bool = False  # Whether one call computes all passes, so that it frees tensors early

    def workspace(self, size: float) -> float:
        of_layer = self.layer.fused_workspace if self.is_fused else self.layer.workspace
        return of_layer(size) + self.passing * size

    def total(self, size: float) -> float:
        return self.gradients + self.kept * size + self.workspace(size)


class StageNeeds(NamedTuple):
    gradients: float
    activations: float
    workspace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    weights: int  # Bytes of the weights of its layers
    samples: float  # Bytes per sample of the whole step, for inputs and barriers
    waiting: float  # Bytes per sample of each other micro-batch that is alive
    # Bytes per sample of each other micro-batch of the step: up to the last barrier all are alive
    before_barrier: float
    moments: tuple[PassMemory, ...]  # Moments among which the peak is
    last_gradients: float  # Bytes of gradients that wait for their update after all passes
    last_samples: float  # Part of `samples` that may still be alive after all passes

    def worst(self, count: int, alive: int, size: float, *, updating: float = 0.0) -> StageNeeds:
        samples, others = self._besides(count, alive, size)
        moment = max(self.moments, key=lambda moment: moment.total(size))
        last = self.last_samples * count * size
        if last + self.last_gradients + updating > samples + others + moment.total(size):
            return StageNeeds(self.last_gradients, last, updating)
        kept = samples + others + moment.kept * size
        return StageNeeds(moment.gradients, kept, moment.workspace(size))

    def total(self, count: int, alive: int, size: float) -> float:
        samples, others = self._besides(count, alive, size)
        return max(
            self.last_samples * count * size + self.last_gradients,
            samples + others + max(moment.total(size) for moment in self.moments),
        )

    def _besides(self, count: int, alive: int, size: float) -> tuple[float, float]:
        """Return the bytes of the whole step's samples, and of the other micro-batches."""
        others = self.waiting * max(0, alive - 1) + self.before_barrier * (count - 1)
        return self.samples * count * size, others * size


def stage_memory(
    span: Span, model: ModelCosts, mode: ExecutionMode, *, accumulates: bool
) -> StageMemory:
    """Return the memory of a stage besides the variables that it owns.

    ::

        bytes of one micro-batch       saved by a  saved by b  saved by c
                                       |===========|===========|===========|  backward pass of c
                                       |===========|===========| + gradients of c
                                       |===========| + gradients of b and c

    The peak is the moment that needs the most in total. A moment is left out if another one needs
    at least as much for any number of samples::

        calls with a schedule    inputs and results of a call are alive until it ends
        no schedule              one replica: TensorFlow chooses the order, so all tensors may be
                                 alive at once; several: activations are freed after the last
                                 backward pass that reads them, and gradients are sent one by one
    """
    layers = [model.layers[index] for index in span.layers]
    kept = [
        entering_bytes(model, index) if mode.recompute[index] else layer.activation_bytes
        for index, layer in zip(span.layers, layers, strict=True)
    ]
    last_barrier = model.last_barrier if mode.has_barriers else -1
    entering = entering_bytes(model, span.first) if span.first else 0.0
    before_barrier = sum(kept[: max(0, last_barrier + 1 - span.first)])
    before_barrier += entering if span.first <= last_barrier else 0.0
    # All samples are sent at the start of the step: no dependency delays them.
    samples = 0.0 if span.first else model.input_bytes
    is_known = mode.is_at_once and all(layer.fused_workspace_bytes is not None for layer in layers)
    if mode.has_barriers and not is_known:
        # Only one barrier is waited for at a time.
        samples += max(layer.barrier_bytes for layer in layers)
    moments = stage_moments(span, model, mode, kept, accumulates=accumulates)
    return StageMemory(
        weights=sum(layer.weight_bytes for layer in layers),
        samples=samples,
        waiting=entering + sum(kept) - before_barrier,
        before_barrier=before_barrier,
        moments=tuple(_undominated(moments)),
        last_gradients=sum(layer.gradient_bytes for layer in layers) if mode.waits else 0,
        # Without a schedule an update may run early.
        last_samples=0.0 if mode.has_order else samples,
    )


def stage_moments(
    span: Span, model: ModelCosts, mode: ExecutionMode, kept: Sequence[float], *, accumulates: bool
) -> Iterator[PassMemory]:
    layers = model.layers
    entering = entering_bytes(model, span.first) if span.first else 0.0
    left = [entering + size for size in itertools.accumulate(kept)]
    is_separate = any(mode.recompute) or mode.has_barriers
    passes_fused = span.end == len(layers) and not is_separate
    # TensorFlow may delay weight gradients, which keeps their activations alive.
    is_open = mode.is_alone and not mode.has_order
    inner = [layer.boundary_bytes for layer in layers[span.first : span.end - 1]]
    between = [0.0, *inner, 0.0, 0.0]
    # Tensors from other stages arrive before their call and leave after it: each counts twice.
    crossing = 2 * entering
    if span.end < len(layers):
        crossing += 2 * layers[span.end - 1].boundary_bytes
    gradients = sum(layers[index].gradient_bytes for index in span.layers) if accumulates else 0
    for number, index in reversed(list(enumerate(span.layers))):
        layer = layers[index]
        is_fused = mode.is_at_once and layer.fused_workspace_bytes is not None
        gradients += layer.gradient_bytes
        passing = crossing + (layer.activation_bytes if mode.recompute[index] else 0.0)
        if not (is_open or is_fused):
            # The gradients that the pass reads and writes, plus the next layer's gradients, which
            # asynchronous kernels may still hold; they reuse activation memory if it is freed.
            passing += sum(between[number : number + 3])
        kept_now = left[number] if is_fused or (passes_fused and not is_open) else left[-1]
        if is_fused and mode.has_barriers:
            # Bytes live across the previous barrier, such as the difference to the mean, which
            # the backward pass of a `BatchNormalization` reads.
            earlier = (other.barrier_bytes for other in reversed(layers[:index]))
            kept_now += next((size for size in earlier if size), 0.0)
        # Otherwise later layers' gradients are in the memory of their fetched weights.
        gradients_now = gradients if mode.waits else fused_gradients(layer)
        yield PassMemory(layer, gradients_now, kept_now, passing, is_fused)
        if is_open and layer.fused_workspace_bytes is not None:
            # Its temporaries may be more than what later layers have freed.
            yield PassMemory(layer, gradients_now, left[number], passing=0.0, is_fused=True)


def fused_gradients(layer: LayerCosts) -> int:
    """Return the bytes by which gradients exceed the weights whose memory they reuse, fused."""
    known = layer.fused_gradient_bytes
    return layer.gradient_bytes if known is None else known


def _undominated(moments: Iterable[PassMemory]) -> Iterator[PassMemory]:
    """Yield the moments that no other moment exceeds for every number of samples."""

    def line(moment: PassMemory) -> tuple[float, float]:
        known = moment.layer.fused_workspace_bytes if moment.is_fused else None
        workspace = moment.layer.workspace_bytes if known is None else known
        return moment.gradients, moment.kept + moment.passing + workspace

    steepest = -1.0
    for moment in sorted(moments, key=line, reverse=True):
        _, slope = line(moment)
        # The measured workspace of kernels may exceed the line.
        if slope > steepest or moment.layer.kernel_workspace is not None:
            yield moment
        steepest = max(steepest, slope)


def entering_bytes(model: ModelCosts, index: int) -> float:
    return model.layers[index - 1].boundary_bytes if index else model.input_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    variables: float = 0.0  # Owned weights, optimizer state and other variables.
    fetched: float = 0.0  # Weights fetched from other owners.
    gradients: float = 0.0  # Gradients of the device, and those that arrive for its weights.
    activations: float = 0.0  # Tensors saved for backward passes, and input samples.
    workspace: float = 0.0  # Temporaries of the layer that is computed, transfers between stages.

    @property
    def total(self) -> int:
        return round(
            self.variables + self.fetched + self.gradients + self.activations + self.workspace
        )

    def plus(self, **more: float) -> MemoryPrediction:
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
    """Return the peak memory by device index, that of the host under `HOST_OWNER`."""
    layers, owners = model.layers, assignment.owners
    holders = holders_of(assignment.replicas, len(layers))
    mode = ExecutionMode.of(assignment, model)
    waits = gradients_wait(model, assignment.replicas, assignment.recompute)
    arrival = GradientArrival(assignment, seconds, waits=waits)
    needs: dict[int, MemoryPrediction] = defaultdict(MemoryPrediction)
    updating: dict[int, int] = defaultdict(int)
    adding: dict[int, int] = defaultdict(int)

    # The variables of the owners, and the gradients that arrive before their update.
    shared: dict[tuple[int, ...], list[LayerCosts]] = defaultdict(list)
    for layer, devices, owner in zip(layers, holders, owners, strict=True):
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
    # Layers of which each machine has a copy, sharded over its devices.
    for devices, some in shared.items():
        variables = sum(layer.owned_bytes for layer in some)
        weights = sum(layer.weight_bytes for layer in some)
        gradients = sum(layer.gradient_bytes for layer in some)
        update = max(layer.update_bytes for layer in some)
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

    # Devices that compute a whole replica in one call beside other replicas.
    at_once = {
        replica.spans[0].device
        for replica in assignment.replicas
        if not (mode.is_alone or any(mode.recompute) or is_in_parts(replica))
    }
    waiting = _waiting_gradients(assignment, model, holders, at_once, arrival, waits=waits)
    for device, size in waiting.items():
        needs[device] = needs[device].plus(gradients=size)

    # The weights, activations and temporaries of the stages of all replicas.
    mode_at_once = dataclasses.replace(mode, has_order=False, waits=False)
    stages: dict[tuple[int, int, bool, bool], StageMemory] = {}
    for replica, live in zip(assignment.replicas, peak_live, strict=True):
        accumulates = replica.num_micro_batches > 1
        for span, alive in zip(replica.spans, live, strict=True):
            is_at_once = span.device in at_once
            key = span.first, span.end, accumulates, is_at_once
            if key not in stages:
                of_span = mode_at_once if is_at_once else mode
                stages[key] = stage_memory(span, model, of_span, accumulates=accumulates)
            count, update = replica.num_micro_batches, updating.pop(span.device, 0)
            worst = stages[key].worst(count, alive, replica.micro_batch, updating=update)
            needs[span.device] = needs[span.device].plus(
                fetched=stages[key].weights, **worst._asdict()
            )
    # Devices that own variables but run no stage only add gradients and apply updates.
    return {
        owner: needed.plus(gradients=adding[owner], workspace=updating.get(owner, 0))
        for owner, needed in needs.items()
    }


def _waiting_gradients(
    assignment: Assignment,
    model: ModelCosts,
    holders: Sequence[tuple[int, ...]],
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
    """
    if waits:
        more = sum(layer.other_gradient_bytes for layer in model.layers[1:])
        sizes = dict.fromkeys(at_once, float(more))
        for layer, owner in zip(model.layers[1:], assignment.owners[1:], strict=True):
            if owner in sizes:
                sizes[owner] += layer.weight_bytes
        return sizes
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
    """Gradients that arrive while an owner computes: with a schedule all, else the faster ones."""

    def __init__(
        self, assignment: Assignment, seconds: Sequence[float] | None, *, waits: bool
    ) -> None:
        self._waits = waits
        times = seconds or [1.0] * len(assignment.replicas)
        self._seconds: dict[int, float] = defaultdict(float)
        for replica, passes_seconds in zip(assignment.replicas, times, strict=True):
            for device in replica.devices:
                self._seconds[device] = max(self._seconds[device], passes_seconds)
        self._sorted: dict[tuple[int, ...], list[float]] = {}

    def num_at(self, owner: int, devices: tuple[int, ...]) -> int:
        if self._waits or owner not in devices:
            return len(devices) - (owner in devices)
        if devices not in self._sorted:
            self._sorted[devices] = sorted(self._seconds[device] for device in devices)
        return bisect.bisect_left(self._sorted[devices], self._seconds[owner] * _AS_FAST)


def shortages(needs: Mapping[int, MemoryPrediction], cluster: Cluster) -> Iterator[tuple[int, int]]:
    for device, needed in needs.items():
        if device == HOST_OWNER:
            sizes = [machine.host_memory_bytes for machine in cluster.machines]
            memory = min((size for size in sizes if size is not None), default=None)
        else:
            memory = cluster.devices[device].memory_bytes
        if memory is not None and needed.total > memory:
            yield device, needed.total - memory
