"""Memory of a stage at each moment of a step, besides the variables that it owns.

::

    bytes of one micro-batch       saved by a  saved by b  saved by c
                                   |===========|===========|===========|  backward pass of c
                                   |===========|===========| + gradients of c
                                   |===========| + gradients of b and c

The peak is the moment that needs the most in total. A moment is left out if another one needs at
least as much for any number of samples.
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
    """Whether the calls of a step follow a schedule; each then holds its inputs until it ends."""
    return any(recompute) or any(map(is_in_parts, replicas))


def gradients_wait(
    model: ModelCosts, replicas: Sequence[ReplicaAssignment], recompute: Sequence[bool]
) -> bool:
    """Whether no gradient is sent before the device has computed all of them."""
    return model.updates_wait or has_order(replicas, recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionMode:
    """Execution mode of a step, as far as the memory of its stages depends on it.

    Args:
        recompute: Whether the activations of each layer are recomputed.
        has_order: Whether the calls follow a schedule; see the function of this name.
        waits: Whether all gradients of a device may be alive at once. A single device applies its
            updates in any order, maybe all at the end.
        has_barriers: Whether the step has barriers.
        is_alone: Whether one replica computes everything.
        defers_weights: Whether weight gradients are computed in later calls, as under
            ``"zero_bubble"``, so that activations stay until then.
    """

    recompute: tuple[bool, ...]
    has_order: bool
    waits: bool
    has_barriers: bool
    is_alone: bool
    defers_weights: bool = False

    @property
    def is_at_once(self) -> bool:
        """Whether each of several devices computes its passes in one call without a schedule."""
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
            defers_weights=any(
                replica.schedule == "zero_bubble" for replica in assignment.replicas
            ),
        )


class Moment(NamedTuple):
    """Memory during the backward pass of a layer.

    Args:
        layer: Costs of the layer.
        gradients: Bytes of weight gradients.
        kept: Bytes per sample of the current micro-batch that later passes read.
        passing: Bytes per sample of the current micro-batch that only this pass needs: gradients of
            activations, and recomputed activations.
        is_fused: Whether one call computes all passes, so that it frees tensors early.
    """

    layer: LayerCosts
    gradients: float
    kept: float
    passing: float
    is_fused: bool = False

    def workspace(self, size: float) -> float:
        """Return the bytes that only this pass needs, for a micro-batch of ``size`` samples."""
        of_layer = self.layer.fused_workspace if self.is_fused else self.layer.workspace
        return of_layer(size) + self.passing * size

    def total(self, size: float) -> float:
        """Return the total bytes, for a micro-batch of ``size`` samples."""
        return self.gradients + self.kept * size + self.workspace(size)


class StageNeeds(NamedTuple):
    """Peak memory of a stage in bytes; see `MemoryPrediction`."""

    gradients: float
    activations: float
    workspace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of a stage besides the variables that it owns.

    Args:
        weights: Bytes of the weights of its layers.
        samples: Bytes per sample of the whole step, for inputs and barriers.
        waiting: Bytes per sample of each other micro-batch that is alive.
        before_barrier: Bytes per sample of each other micro-batch of the step: up to the last
            barrier all are alive.
        moments: Moments among which the peak is.
        last_gradients: Bytes of gradients that wait for their update after all passes.
        last_samples: Part of `samples` that may still be alive after all passes.
    """

    weights: int
    samples: float
    waiting: float
    before_barrier: float
    moments: tuple[Moment, ...]
    last_gradients: float
    last_samples: float

    def worst(self, count: int, alive: int, size: float, *, updating: float = 0.0) -> StageNeeds:
        """Return the peak memory besides weights.

        Args:
            count: Micro-batches of the step.
            alive: Most micro-batches alive in the stage at once.
            size: Samples of each micro-batch.
            updating: Temporary bytes of the largest update, which runs after all passes.
        """
        samples, others = self._besides(count, alive, size)
        moment = max(self.moments, key=lambda moment: moment.total(size))
        last = self.last_samples * count * size
        if last + self.last_gradients + updating > samples + others + moment.total(size):
            return StageNeeds(self.last_gradients, last, updating)
        kept = samples + others + moment.kept * size
        return StageNeeds(moment.gradients, kept, moment.workspace(size))

    def total(self, count: int, alive: int, size: float) -> float:
        """Return the peak bytes; the arguments are those of `worst`."""
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

        calls with a schedule    inputs and results of a call are alive until it ends
        no schedule              one replica: TensorFlow chooses the order, so all tensors may be
                                 alive at once; several: activations are freed after the last
                                 backward pass that reads them, and gradients are sent one by one

    Args:
        span: Stage.
        model: Costs of the layers.
        mode: Execution mode of the step.
        accumulates: Whether gradients of several micro-batches are accumulated.
    """
    layers = [model.layers[index] for index in span.layers]
    kept = [
        entering_bytes(model, index) if mode.recompute[index] else layer.activation_bytes
        for index, layer in zip(span.layers, layers, strict=True)
    ]
    last_barrier = model.last_barrier if mode.has_barriers else -1
    entering = entering_bytes(model, span.first) if span.first else 0.0
    before_barrier = sum(
        size for index, size in zip(span.layers, kept, strict=True) if index <= last_barrier
    )
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
    span: Span,
    model: ModelCosts,
    mode: ExecutionMode,
    kept: Sequence[float],
    *,
    accumulates: bool,
) -> Iterator[Moment]:
    """Yield the memory during each backward pass of a stage, in order.

    Args:
        span: Stage.
        model: Costs of the layers.
        mode: Execution mode of the step.
        kept: Bytes per sample that each layer of the stage keeps for its backward pass.
        accumulates: Whether gradients of several micro-batches are accumulated.
    """
    layers = model.layers
    entering = entering_bytes(model, span.first) if span.first else 0.0
    left = [entering + size for size in itertools.accumulate(kept)]
    is_separate = any(mode.recompute) or mode.has_barriers or mode.defers_weights
    passes_fused = span.end == len(layers) and not is_separate
    # TensorFlow may delay weight gradients, which keeps their activations alive.
    is_open = mode.is_alone and not mode.has_order
    between = [
        0.0,
        *(layer.boundary_bytes for layer in layers[span.first : span.end - 1]),
        0.0,
        0.0,
    ]
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
            kept_now += _waiting_before(model, index)
        # Otherwise later layers' gradients are in the memory of their fetched weights.
        gradients_now = gradients if mode.waits else fused_gradients(layer)
        yield Moment(
            layer=layer,
            gradients=gradients_now,
            kept=kept_now,
            passing=passing,
            is_fused=is_fused,
        )
        if is_open and layer.fused_workspace_bytes is not None:
            # Its temporaries may be more than what later layers have freed.
            yield Moment(
                layer=layer,
                gradients=gradients_now,
                kept=left[number],
                passing=0.0,
                is_fused=True,
            )


def _waiting_before(model: ModelCosts, index: int) -> float:
    """Return the bytes per sample live across the previous barrier when both passes are fused.

    An example is the difference to the mean, which the backward pass of a `BatchNormalization`
    reads: it is computed as soon as the mean is known.
    """
    before = (layer.barrier_bytes for layer in reversed(model.layers[:index]))
    return next((size for size in before if size), 0.0)


def fused_gradients(layer: LayerCosts) -> int:
    """Return the bytes by which gradients exceed the weights whose memory they reuse, fused."""
    known = layer.fused_gradient_bytes
    return layer.gradient_bytes if known is None else known


def _undominated(moments: Iterable[Moment]) -> Iterator[Moment]:
    """Yield the moments that no other moment exceeds for every number of samples."""

    def line(moment: Moment) -> tuple[float, float]:
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


def deferred_bytes(span: Span, model: ModelCosts) -> float:
    """Return the bytes per sample that deferred weight gradients read besides activations.

    These are the output gradients of layers with weights; a micro-batch keeps them until its weight
    gradients are computed.
    """
    layers = (model.layers[index] for index in span.layers)
    return sum(layer.boundary_bytes for layer in layers if layer.weight_bytes)


def entering_bytes(model: ModelCosts, index: int) -> float:
    """Return the bytes per sample that a layer reads from earlier layers."""
    return model.layers[index - 1].boundary_bytes if index else model.input_bytes
