"""What a stage has in memory at each moment of a step, besides its owned variables.

::

    bytes of one micro-batch        kept by a   kept by b   kept by c
                                   |===========|===========|===========|  backward pass of c
                                   |===========|===========| + gradients of c
                                   |===========| + gradients of b and c

What is greatest at different moments is not there at once: the worst moment counts. A moment is
left out if another one needs as much for any number of samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evener.cost_model.assignment import Assignment, ReplicaAssignment, Span
from evener.cost_model.barriers import is_in_parts, step_has_barriers
from evener.profile import LayerCosts, ModelCosts


def has_order(replicas: Sequence[ReplicaAssignment], recompute: Sequence[bool]) -> bool:
    """Whether the calls of a step have an order: then each keeps what it is given to its end."""
    return any(recompute) or any(map(is_in_parts, replicas))


def gradients_wait(
    model: ModelCosts, replicas: Sequence[ReplicaAssignment], recompute: Sequence[bool]
) -> bool:
    """Whether all gradients of a device are there before the first of them leaves."""
    return model.updates_wait or has_order(replicas, recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionMode:
    """How a step is computed, as far as the memory of its stages depends on it.

    Args:
        recompute: Whether the activations of each layer are computed again.
        has_order: Whether its calls have an order; see the function of this name.
        waits: Whether all gradients of a device may be there before the first of them leaves. One
            device computes its updates when it comes to them, which may be at the end.
        has_barriers: Whether parts of the batch meet at layers of the whole batch.
        is_alone: Whether one replica computes everything.
        puts_off: Whether gradients of weights are computed in calls of their own, as under
            ``"zero_bubble"``, so that activations stay until then.
    """

    recompute: tuple[bool, ...]
    has_order: bool
    waits: bool
    has_barriers: bool
    is_alone: bool
    puts_off: bool = False

    @property
    def is_at_once(self) -> bool:
        """Whether it is that of one of several devices that computes all in one call."""
        return not (self.is_alone or self.waits or self.has_order)

    @classmethod
    def of(cls, assignment: Assignment, model: ModelCosts) -> ExecutionMode:
        """Return the execution mode of an assignment."""
        is_alone = len(assignment.replicas) == 1
        return cls(
            recompute=assignment.recompute,
            has_order=has_order(assignment.replicas, assignment.recompute),
            waits=is_alone or gradients_wait(model, assignment.replicas, assignment.recompute),
            has_barriers=step_has_barriers(assignment, model),
            is_alone=is_alone,
            puts_off=any(one.schedule == "zero_bubble" for one in assignment.replicas),
        )


class Moment(NamedTuple):
    """The backward pass of a layer.

    Args:
        layer: The layer.
        gradients: Bytes of gradients of weights.
        kept: Bytes per sample of the micro-batch at hand, for the passes to come.
        passing: Bytes per sample of the micro-batch at hand, for this pass: gradients of
            activations, and activations that are computed again.
        is_fused: Whether one call computes all passes, so that nothing is held for long.
    """

    layer: LayerCosts
    gradients: float
    kept: float
    passing: float
    is_fused: bool = False

    def workspace(self, size: float) -> float:
        """Return the bytes that only this pass needs, for so many samples."""
        of_layer = self.layer.fused_workspace if self.is_fused else self.layer.workspace
        return of_layer(size) + self.passing * size

    def total(self, size: float) -> float:
        """Return all of it in bytes, for so many samples."""
        return self.gradients + self.kept * size + self.workspace(size)


class StageNeeds(NamedTuple):
    """What a stage needs at its worst moment, in bytes; see `MemoryPrediction`."""

    gradients: float
    activations: float
    workspace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What a stage needs besides owned variables.

    Args:
        weights: Bytes of the weights of its layers.
        samples: Bytes per sample that all micro-batches need for the whole step.
        waiting: Bytes per sample of every other micro-batch that is alive.
        met: Bytes per sample of every other micro-batch, because all of them meet at a layer.
        moments: Among which the worst one counts.
        last_gradients: Bytes of gradients that wait for their update when all passes are done.
        last_samples: Of `samples`, what may still be there then.
    """

    weights: int
    samples: float
    waiting: float
    met: float
    moments: tuple[Moment, ...]
    last_gradients: float
    last_samples: float

    def worst(self, count: int, alive: int, size: float, *, updating: float = 0.0) -> StageNeeds:
        """Return what is needed at the worst moment besides weights.

        Args:
            count: The micro-batches of the step.
            alive: The most of them that are alive there at once.
            size: The samples of each.
            updating: Bytes of what the largest update needs that runs when all passes are done.
        """
        samples, others = self._besides(count, alive, size)
        moment = max(self.moments, key=lambda one: one.total(size))
        last = self.last_samples * count * size
        if last + self.last_gradients + updating > samples + others + moment.total(size):
            return StageNeeds(self.last_gradients, last, updating)
        kept = samples + others + moment.kept * size
        return StageNeeds(moment.gradients, kept, moment.workspace(size))

    def total(self, count: int, alive: int, size: float) -> float:
        """Return the bytes of the worst moment; the arguments are those of `worst`."""
        samples, others = self._besides(count, alive, size)
        return max(
            self.last_samples * count * size + self.last_gradients,
            samples + others + max(one.total(size) for one in self.moments),
        )

    def _besides(self, count: int, alive: int, size: float) -> tuple[float, float]:
        """Return the bytes of the step's samples, and of the other micro-batches."""
        others = self.waiting * max(0, alive - 1) + self.met * (count - 1)
        return self.samples * count * size, others * size


def stage_memory(
    span: Span, model: ModelCosts, mode: ExecutionMode, *, accumulates: bool
) -> StageMemory:
    """Return what a stage needs besides owned variables.

    ::

        calls in an order    what a call is given stays to its end, and so do its results
        no order             of one replica, what is there and when is open: everything may be;
                             of several, activations go with the last backward pass that needs
                             them, and gradients leave one by one

    Args:
        span: The stage.
        model: The costs of the layers.
        mode: Execution mode of the step.
        accumulates: Whether gradients of several micro-batches are added up.
    """
    layers = [model.layers[place] for place in span.layers]
    kept = [
        entering_bytes(model, place) if mode.recompute[place] else layer.activation_bytes
        for place, layer in zip(span.layers, layers, strict=True)
    ]
    last_barrier = model.last_barrier if mode.has_barriers else -1
    entering = entering_bytes(model, span.first) if span.first else 0.0
    met = sum(one for place, one in zip(span.layers, kept, strict=True) if place <= last_barrier)
    met += entering if span.first <= last_barrier else 0.0
    # All samples of a step are sent at its begin: nothing tells them to wait.
    samples = 0.0 if span.first else model.input_bytes
    is_known = mode.is_at_once and all(one.fused_workspace_bytes is not None for one in layers)
    if mode.has_barriers and not is_known:
        # The parts meet at one layer at a time.
        samples += max(layer.barrier_bytes for layer in layers)
    moments = stage_moments(span, model, mode, kept, accumulates=accumulates)
    return StageMemory(
        weights=sum(layer.weight_bytes for layer in layers),
        samples=samples,
        waiting=entering + sum(kept) - met,
        met=met,
        moments=tuple(_undominated(moments)),
        last_gradients=sum(layer.gradient_bytes for layer in layers) if mode.waits else 0,
        # With no order an update may come early.
        last_samples=0.0 if mode.has_order else samples,
    )


def stage_moments(
    span: Span,
    model: ModelCosts,
    mode: ExecutionMode,
    kept: Sequence[float],
    *,
    accumulates: bool,
) -> Iterator[Moment]:
    """Yield the backward passes of a stage in their order, each with what is there then.

    Args:
        span: The stage.
        model: The costs of the layers.
        mode: Execution mode of the step.
        kept: Of each layer of the stage, bytes per sample.
        accumulates: Whether gradients of several micro-batches are added up.
    """
    layers = model.layers
    entering = entering_bytes(model, span.first) if span.first else 0.0
    left = [entering + one for one in itertools.accumulate(kept)]
    is_separate = any(mode.recompute) or mode.has_barriers or mode.puts_off
    fused = span.end == len(layers) and not is_separate
    # Without an order one device may come late to gradients of weights, which read activations.
    is_open = mode.is_alone and not mode.has_order
    between = [
        0.0,
        *(layer.boundary_bytes for layer in layers[span.first : span.end - 1]),
        0.0,
        0.0,
    ]
    # What comes from other stages arrives before its call, what goes leaves after it: each twice.
    crossing = 2 * entering
    if span.end < len(layers):
        crossing += 2 * layers[span.end - 1].boundary_bytes
    gradients = sum(layers[place].gradient_bytes for place in span.layers) if accumulates else 0
    for number, place in reversed(list(enumerate(span.layers))):
        layer = layers[place]
        is_fused = mode.is_at_once and layer.fused_workspace_bytes is not None
        gradients += layer.gradient_bytes
        passing = crossing + (layer.activation_bytes if mode.recompute[place] else 0.0)
        if not (is_open or is_fused):
            # The gradients that it makes and reads and, as kernels wait in a queue, those that the
            # layer behind has read; they have the place of activations, if all of these count.
            passing += sum(between[number : number + 3])
        kept_now = left[number] if is_fused or (fused and not is_open) else left[-1]
        if is_fused and mode.has_barriers:
            kept_now += _waiting_before(model, place)
        yield Moment(
            layer=layer,
            # Else those behind have the place of the weights that were fetched.
            gradients=gradients if mode.waits else fused_gradients(layer),
            kept=kept_now,
            passing=passing,
            is_fused=is_fused,
        )


def _waiting_before(model: ModelCosts, place: int) -> float:
    """Return the bytes per sample that wait for the barriers of layers before one, in one call.

    As the difference to the mean, which the backward pass of a `BatchNormalization` reads: it is
    computed as soon as the mean is there.
    """
    before = (layer.barrier_bytes for layer in reversed(model.layers[:place]))
    return next((size for size in before if size), 0.0)


def fused_gradients(layer: LayerCosts) -> int:
    """Return the bytes of gradients beyond the weights whose place they take, in one call."""
    known = layer.fused_gradient_bytes
    return layer.gradient_bytes if known is None else known


def _undominated(moments: Iterable[Moment]) -> Iterator[Moment]:
    """Yield the moments of which no other one needs as much, for any number of samples."""

    def line(moment: Moment) -> tuple[float, float]:
        known = moment.layer.fused_workspace_bytes if moment.is_fused else None
        workspace = moment.layer.workspace_bytes if known is None else known
        return moment.gradients, moment.kept + moment.passing + workspace

    steepest = -1.0
    for moment in sorted(moments, key=line, reverse=True):
        _, slope = line(moment)
        # What kernels were seen to need may be more than the line says.
        if slope > steepest or moment.layer.kernel_workspace is not None:
            yield moment
        steepest = max(steepest, slope)


def put_off_bytes(span: Span, model: ModelCosts) -> float:
    """Return the bytes per sample that gradients of weights read besides activations.

    Those are the gradients of the results of layers with weights. Until then a micro-batch keeps
    them, as each call hands over what later ones read.
    """
    layers = (model.layers[place] for place in span.layers)
    return sum(layer.boundary_bytes for layer in layers if layer.weight_bytes)


def entering_bytes(model: ModelCosts, place: int) -> float:
    """Return the bytes per sample that a layer reads of the layers before it."""
    return model.layers[place - 1].boundary_bytes if place else model.input_bytes
