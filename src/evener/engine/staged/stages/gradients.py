"""The gradient of every stage, in the graph of the forward pass.

Stages are differentiated from the last to the first. What a stage hands on to later ones is
where its own gradient begins:

      stage 0 ──── y0 ────► stage 1 ──── y1 ────► stage 2 ──► loss
      stage 0 ◄─── dy0 ──── stage 1 ◄─── dy1 ──── stage 2 ◄── coefficient
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from evener.engine.staged.reduction import Gradient
from evener.engine.staged.stages.assignment import Assignment
from evener.engine.staged.stages.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGradient:
    """The backward pass of one stage; all tensors are in the graph of the trace.

    Attributes:
        begins: What the stage has made and where its gradient is put in (a placeholder).
        inputs: What came from earlier stages and its gradient.
        weights: Position of each weight and its gradient.
        sums: For small dense gradients that add up over micro-batches: position of the weight,
            where the sum so far is put in (a placeholder), and that sum plus the gradient.
        regions: For each call that is computed again, gradients of its results: until they
            are there, nothing of it is needed.
        operations: What was added to the graph.
    """

    begins: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    inputs: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    weights: tuple[tuple[int, Gradient], ...]
    sums: tuple[tuple[int, tf.Tensor, tf.Tensor], ...]
    regions: Mapping[int, tuple[tf.Tensor, ...]]
    operations: frozenset[tf.Operation]


# Bytes from which the gradient of a weight is added up behind the call that gives it.
LARGE = 1 << 18


def differentiate(
    trace: Trace,
    assignment: Assignment,
    received: Sequence[Sequence[tf.Tensor]],
    targets: Sequence[tf.Tensor],
    weights: Sequence[Mapping[int, tf.Tensor]],
    *,
    accumulate: bool,
) -> list[StageGradient | None]:
    """Add the backward pass of every stage to the graph.

    Args:
        trace: The forward pass.
        assignment: The stages of its operations.
        received: For each stage, the tensors that come from earlier ones.
        targets: Where the gradient begins, whose gradients will be given.
        weights: For each stage, position and placeholder of the weights it uses.
        accumulate: Whether small dense gradients of weights are also added to a sum.

    Returns:
        One per stage; None for a stage that the targets do not depend on.
    """
    handed_on: dict[int, list[tf.Tensor]] = {k: [] for k in range(assignment.num_stages)}
    for tensor in targets:
        handed_on[assignment.home_of(tensor)].append(tensor)
    gradients: list[StageGradient | None] = [None] * assignment.num_stages
    for stage in reversed(range(assignment.num_stages)):
        begins = list({id(t): t for t in handed_on[stage]}.values())
        if not begins:
            continue
        made = _one_stage(
            trace,
            assignment,
            begins,
            [t for t in received[stage] if t.dtype.is_floating or t.dtype.is_complex],
            weights[stage],
            accumulate=accumulate,
        )
        gradients[stage] = made
        for tensor, _ in made.inputs:
            handed_on[assignment.home_of(tensor)].append(tensor)
    return gradients


def _one_stage(
    trace: Trace,
    assignment: Assignment,
    begins: Sequence[tf.Tensor],
    received: Sequence[tf.Tensor],
    weights: Mapping[int, tf.Tensor],
    *,
    accumulate: bool,
) -> StageGradient:
    stage = assignment.home_of(begins[0])
    results = _region_results(trace, assignment, stage)
    flat_results = [tensor for _, tensor in results]
    before = len(trace.graph.get_operations())
    with trace.graph.as_default():
        seeds = [_placeholder(tensor) for tensor in begins]
        found = tf.gradients(
            list(begins),
            [*received, *weights.values(), *flat_results],
            grad_ys=seeds,
            stop_gradients=list(received),
        )
        d_received = [_as_dense(g) for g in found[: len(received)]]
        d_weights = found[len(received) : len(received) + len(weights)]
        sums = _added_up(weights, d_weights) if accumulate else ()
    added = trace.graph.get_operations()[before:]
    shapes = {op for op in added if _asks_for_a_shape(op, assignment)}
    # Known in the forward pass already: else whole tensors would be kept for their shapes.
    assignment.stages.update(dict.fromkeys(shapes, stage))
    d_results = found[len(received) + len(weights) :]
    regions: dict[int, tuple[tf.Tensor, ...]] = {}
    for (region, _), gradient in zip(results, d_results, strict=True):
        if gradient is not None:
            parts = tf.nest.flatten(gradient, expand_composites=True)
            regions[region] = (*regions.get(region, ()), *parts)
    return StageGradient(
        begins=tuple(zip(begins, seeds, strict=True)),
        inputs=tuple((t, g) for t, g in zip(received, d_received, strict=True) if g is not None),
        weights=tuple((k, g) for k, g in zip(weights, d_weights, strict=True) if g is not None),
        sums=tuple(sums),
        regions=regions,
        operations=frozenset(added) - shapes,
    )


def _asks_for_a_shape(op: tf.Operation, assignment: Assignment) -> bool:
    return op.type in ("Shape", "Size", "Rank") and op.inputs[0].op in assignment.stages


def _placeholder(tensor: tf.Tensor) -> tf.Tensor:
    return tf.compat.v1.placeholder(tensor.dtype, tensor.shape)


def _as_dense(gradient: Gradient) -> tf.Tensor | None:
    return None if gradient is None else tf.convert_to_tensor(gradient)


def _added_up(
    weights: Mapping[int, tf.Tensor], gradients: Sequence[Gradient]
) -> list[tuple[int, tf.Tensor, tf.Tensor]]:
    """Add each small dense gradient to the sum of earlier micro-batches.

    Large ones are added up behind the call: what it gives the stage before need not wait for
    that, and a sum that a call is given cannot be added to in place. For small ones the graph
    of the step would grow with weights x micro-batches for nothing.
    Slices of an embedding are joined at the end instead: their sum would be as large as the
    whole table.
    """
    sums = []
    for (position, weight), gradient in zip(weights.items(), gradients, strict=True):
        small = weight.dtype.size * weight.shape.num_elements() < LARGE
        if isinstance(gradient, tf.Tensor) and small:
            so_far = tf.compat.v1.placeholder(weight.dtype, weight.shape)
            sums.append((position, so_far, so_far + gradient))
    return sums


def _region_results(
    trace: Trace, assignment: Assignment, stage: int
) -> list[tuple[int, tf.Tensor]]:
    """Return the results of the calls that are computed again, with the call they are of.

    A result that the call itself uses too is left out: its gradient needs what is inside.
    """
    results = []
    for op, region in assignment.regions.items():
        if assignment.stages[op] != stage:
            continue
        for tensor in op.outputs:
            users = [assignment.regions.get(user) for user in tensor.consumers()]
            differentiable = tensor.dtype.is_floating or tensor.dtype.is_complex
            if users and region not in users and differentiable:
                results.append((region, tensor))
    return results
