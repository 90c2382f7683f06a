"""What a stage has in memory at each moment of a step, besides its owned variables.

::

    bytes of one micro-batch        kept by a   kept by b   kept by c
                                   |===========|===========|===========|  backward pass of c
                                   |===========|===========| + gradients of c
                                   |===========| + gradients of b and c

What is greatest at different moments is not there at once: the worst moment counts. Layers behind
one whose needs are the same, or less, for any number of samples are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evener.plan.costing.assignment import Assignment, ReplicaAssignment, Span
from evener.plan.costing.meetings import is_in_parts, parts_meet
from evener.profile import LayerCosts, ModelCosts


def has_order(replicas: Sequence[ReplicaAssignment], recompute: Sequence[bool]) -> bool:
    """Whether the calls of a step have an order: then each keeps what it is given to its end."""
    return any(recompute) or any(map(is_in_parts, replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWay:
    """How a step is computed, as far as the memory of its stages depends on it.

    Args:
        recompute: Whether the activations of each layer are computed again.
        has_order: Whether its calls have an order; see the function of this name.
        meets: Whether parts of the batch meet at layers of the whole batch.
        is_alone: Whether one replica computes everything.
    """

    recompute: tuple[bool, ...]
    has_order: bool
    meets: bool
    is_alone: bool

    @classmethod
    def of(cls, assignment: Assignment, model: ModelCosts) -> StepWay:
        """Return the way of an assignment."""
        return cls(
            recompute=assignment.recompute,
            has_order=has_order(assignment.replicas, assignment.recompute),
            meets=parts_meet(assignment, model),
            is_alone=len(assignment.replicas) == 1,
        )


class Moment(NamedTuple):
    """The backward pass of a layer.

    Args:
        layer: The layer.
        gradients: Bytes of gradients of weights.
        updating: Bytes of what an update needs that runs at the same time.
        kept: Bytes per sample of the micro-batch at hand, for the passes to come.
        passing: Bytes per sample of the micro-batch at hand, for this pass: gradients of
            activations, and activations that are computed again.
    """

    layer: LayerCosts
    gradients: float
    updating: float
    kept: float
    passing: float

    def workspace(self, size: float) -> float:
        """Return the bytes that only this pass needs, for so many samples."""
        # One kernel runs at a time.
        return max(self.layer.workspace(size), self.updating) + self.passing * size

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
    """What a stage needs besides weights and owned variables.

    Args:
        samples: Bytes per sample that all micro-batches need for the whole step.
        waiting: Bytes per sample of every other micro-batch that is alive.
        met: Bytes per sample of every other micro-batch, because all of them meet at a layer.
        moments: Among which the worst one counts.
        last_gradients: Bytes of gradients that wait for their update when all passes are done.
    """

    samples: float
    waiting: float
    met: float
    moments: tuple[Moment, ...]
    last_gradients: float

    def worst(self, count: int, alive: int, size: float, *, updating: float = 0.0) -> StageNeeds:
        """Return what is needed at the worst moment.

        Args:
            count: The micro-batches of the step.
            alive: The most of them that are alive there at once.
            size: The samples of each.
            updating: Bytes of what the largest update needs that runs when all passes are done.
        """
        samples, others = self._besides(count, alive, size)
        moment = max(self.moments, key=lambda one: one.total(size))
        if self.last_gradients + updating > moment.total(size) + others:
            return StageNeeds(self.last_gradients, samples, updating)
        kept = samples + others + moment.kept * size
        return StageNeeds(moment.gradients, kept, moment.workspace(size))

    def total(self, count: int, alive: int, size: float) -> float:
        """Return the bytes of the worst moment; the arguments are those of `worst`."""
        samples, others = self._besides(count, alive, size)
        return samples + max(
            self.last_gradients, others + max(one.total(size) for one in self.moments)
        )

    def _besides(self, count: int, alive: int, size: float) -> tuple[float, float]:
        """Return the bytes of the step's samples, and of the other micro-batches."""
        others = self.waiting * max(0, alive - 1) + self.met * (count - 1)
        return self.samples * count * size, others * size


def stage_memory(span: Span, model: ModelCosts, way: StepWay, *, accumulates: bool) -> StageMemory:
    """Return what a stage needs besides weights and owned variables.

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
    waits = way.has_order or model.updates_wait
    moments = stage_moments(span, model, way, kept, accumulates=accumulates, waits=waits)
    return StageMemory(
        samples=samples,
        waiting=entering + sum(kept) - met,
        met=met,
        moments=tuple(_undominated(moments)),
        last_gradients=sum(layer.gradient_bytes for layer in layers) if waits else 0,
    )


def stage_moments(
    span: Span,
    model: ModelCosts,
    way: StepWay,
    kept: Sequence[float],
    *,
    accumulates: bool,
    waits: bool,
) -> Iterator[Moment]:
    """Yield the backward passes of a stage in their order, each with what is there then.

    Args:
        span: The stage.
        model: The costs of the layers.
        way: How the step is computed.
        kept: Of each layer of the stage, bytes per sample.
        accumulates: Whether gradients of several micro-batches are added up.
        waits: Whether all gradients are there before the first of them leaves.
    """
    layers = model.layers
    entering = entering_bytes(model, span.first) if span.first else 0.0
    left = [entering + one for one in itertools.accumulate(kept)]
    joint = span.end == len(layers) and not any(way.recompute) and not way.meets
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
    behind: LayerCosts | None = None
    for number, place in reversed(list(enumerate(span.layers))):
        layer = layers[place]
        gradients += layer.gradient_bytes
        there, updating = gradients, 0
        if not waits:
            # Of a weight that was fetched, the gradient has its place before it leaves.
            there = layer.gradient_bytes
            if way.is_alone and behind:
                # Kernels wait in a queue: the update of the layer behind may not be done yet.
                there += behind.gradient_bytes
                updating = behind.update_bytes
        again = layer.activation_bytes if way.recompute[place] else 0.0
        yield Moment(
            layer=layer,
            gradients=there,
            updating=updating,
            kept=left[number] if joint else left[-1],
            # The gradients that it makes and reads and, again of the queue, those that the layer
            # behind has read.
            passing=again + crossing + sum(between[number : number + 3]),
        )
        behind = layer


def _undominated(moments: Iterable[Moment]) -> list[Moment]:
    """Return the moments that need the most for some number of samples.

    Each is the greater of two lines, with the update and with the layer's workspace. A line counts
    if it begins higher than all others that are as steep.
    """
    every = list(moments)
    lines: list[tuple[float, float, int]] = []
    for number, one in enumerate(every):
        slope = one.kept + one.passing
        lines.append((one.gradients + one.updating, slope, number))
        lines.append((one.gradients, slope + one.layer.workspace_bytes, number))
    counting = {number for number, one in enumerate(every) if one.layer.kernel_workspace}
    steepest = -1.0
    for _, slope, number in sorted(lines, reverse=True):
        if slope > steepest:
            counting.add(number)
            steepest = slope
    return [every[number] for number in sorted(counting)]


def entering_bytes(model: ModelCosts, place: int) -> float:
    """Return the bytes per sample that a layer reads of the layers before it."""
    return model.layers[place - 1].boundary_bytes if place else model.input_bytes
