"""Choice of the layers to recompute: as few as the memory of the devices requires.

::

    all recomputed     | a b c d e |    free memory on each device
    kept instead       |   b   d   |    the most seconds saved per byte

Greedily stop recomputing layers, ordered by the seconds saved per fraction of free memory that
their activations fill, on the device where that fraction is largest. The estimate adds these bytes
at every moment of the step, so no device runs out of memory.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from evener.cost_model.assignment import Assignment, ReplicaAssignment
from evener.cost_model.barriers import step_has_barriers
from evener.cost_model.estimate import recomputed_layers
from evener.cost_model.prediction import Prediction
from evener.cost_model.stage_memory import entering_bytes
from evener.profile import CostProfile

_MOST_TIMES = 4
"""Most repetitions of each kind of change."""

_MOST_TRIED, _MOST_SWAPS = 4, 100

Predict = Callable[[Assignment], Prediction]


def with_all_recomputed(assignment: Assignment, profile: CostProfile) -> Assignment:
    """Return an assignment that recomputes all layers whose activations exceed their inputs."""
    return dataclasses.replace(assignment, recompute=recomputed_layers(profile.model))


def give_back(
    assignment: Assignment, prediction: Prediction, profile: CostProfile, predict: Predict
) -> tuple[Assignment, Prediction]:
    """Return an assignment that recomputes fewer layers, with its prediction.

    Args:
        assignment: Assignment with recomputed layers that fits into memory.
        prediction: Prediction of the assignment.
        profile: Costs of the layers.
        predict: Function that predicts other assignments.
    """
    found = assignment, prediction
    for _ in range(_MOST_TIMES):
        given = _given(*found, profile)
        fewer = _without(found[0], given, profile, predict) if given else None
        if fewer is None:
            break
        found = fewer
    for _ in range(_MOST_TIMES):
        nearly = itertools.islice(_nearly(*found, profile), _MOST_TRIED)
        ways = (_without(found[0], {layer}, profile, predict) for layer in nearly)
        fewer = next((result for result in ways if result is not None), None)
        if fewer is None:
            break
        found = fewer
    return found


def _without(
    assignment: Assignment,
    given: Collection[int],
    profile: CostProfile,
    predict: Predict,
) -> tuple[Assignment, Prediction] | None:
    """Return an assignment that keeps the activations of given layers; None if it does not fit."""
    recompute = tuple(
        is_recomputed and index not in given
        for index, is_recomputed in enumerate(assignment.recompute)
    )
    if not any(recompute):
        return None
    fewer = dataclasses.replace(assignment, recompute=recompute)
    found = predict(fewer)
    return None if min(_left(found, profile).values(), default=0.0) < 0 else (fewer, found)


def swaps(assignment: Assignment, profile: CostProfile) -> Iterator[Assignment]:
    """Yield assignments that recompute one or two layers fewer, or others instead."""
    may_be = recomputed_layers(profile.model)
    recompute = assignment.recompute
    indices = [k for k, is_recomputed in enumerate(recompute) if is_recomputed]
    recomputed = _unlike(indices, assignment, profile)
    # Of layers that are alike, two may be kept together.
    others = _unlike([k for k in indices if k not in recomputed], assignment, profile)
    pairs = itertools.combinations(sorted([*recomputed, *others]), 2)
    kept = [k for k, is_recomputed in enumerate(recompute) if not is_recomputed and may_be[k]]
    instead = _unlike(kept, assignment, profile)
    less = [*((layer,) for layer in recomputed), *pairs]
    more = [(), *((layer,) for layer in instead)]
    ways = itertools.chain(
        itertools.product(less, more),
        itertools.product(less, itertools.combinations(instead, 2)),
    )
    for given, taken in itertools.islice(ways, _MOST_SWAPS):
        changed = tuple(
            index in taken or (is_recomputed and index not in given)
            for index, is_recomputed in enumerate(recompute)
        )
        yield dataclasses.replace(assignment, recompute=changed)


def _given(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> set[int]:
    """Return the layers whose activations can be kept within the free memory."""
    left = _left(prediction, profile)
    needs = _needed_bytes(assignment, prediction, profile)
    given: set[int] = set()
    for index in _by_worth(assignment, needs, left, profile):
        if all(more <= left[device] for device, more, _ in needs[index] if device in left):
            given.add(index)
            for device, more, _ in needs[index]:
                if device in left:
                    left[device] -= more
    return given


def _nearly(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> Iterator[int]:
    """Yield layers that fit if the peak is in their own backward pass.

    Their recomputed activations are in memory there anyway.
    """
    left = _left(prediction, profile)
    needs = _needed_bytes(assignment, prediction, profile)
    worth = _by_worth(assignment, needs, left, profile)
    for index in _unlike(worth, assignment, profile):
        if all(
            more - anyway <= left[device] for device, more, anyway in needs[index] if device in left
        ):
            yield index


_Needs = Mapping[int, Sequence[tuple[int, float, float]]]


def _by_worth(
    assignment: Assignment, needs: _Needs, left: Mapping[int, float], profile: CostProfile
) -> list[int]:
    """Return the recomputed layers, those that save the most seconds per memory first."""

    def filled(index: int) -> float:
        return max(
            (more / max(left[device], 1.0) for device, more, _ in needs[index] if device in left),
            default=0.0,
        )

    def saved(index: int) -> float:
        return _recompute_seconds(index, assignment, profile) / max(filled(index), 1e-12)

    recomputed = [
        index for index, is_recomputed in enumerate(assignment.recompute) if is_recomputed
    ]
    return sorted(recomputed, key=saved, reverse=True)


def _needed_bytes(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> _Needs:
    """Return for each layer the bytes that its activations need on each device, if kept.

    Each entry has the device, these bytes, and the bytes of the activations in the backward pass of
    the layer, which recomputation needs too.
    """
    model = profile.model
    last_barrier = model.last_barrier if step_has_barriers(assignment, model) else -1
    needs: dict[int, list[tuple[int, float, float]]] = {k: [] for k in range(len(model.layers))}
    for replica, times in zip(assignment.replicas, prediction.timelines, strict=True):
        live = (replica.in_flight,) if times is None else times.peak_live
        for span, alive in zip(replica.spans, live, strict=True):
            for index in span.layers:
                kept = model.layers[index].activation_bytes - entering_bytes(model, index)
                count = replica.num_micro_batches if index <= last_barrier else alive
                size = replica.micro_batch
                anyway = model.layers[index].activation_bytes * size
                needs[index].append((span.device, kept * count * size, anyway))
    return needs


def _left(prediction: Prediction, profile: CostProfile) -> dict[int, float]:
    """Return the free bytes of the devices with a memory limit."""
    limits = [device.memory_bytes for device in profile.cluster.devices]
    return {
        device: limit - needed.total
        for device, needed in prediction.memory.items()
        if device >= 0 and (limit := limits[device]) is not None
    }


def _recompute_seconds(index: int, assignment: Assignment, profile: CostProfile) -> float:
    """Return the seconds that recomputing a layer takes, in the slowest replica."""
    return max(
        replica.num_micro_batches
        * profile.times[profile.cluster.devices[device].type][index].forward(replica.micro_batch)
        for replica, device in _holders(index, assignment)
    )


def _holders(index: int, assignment: Assignment) -> Iterator[tuple[ReplicaAssignment, int]]:
    for replica in assignment.replicas:
        for span in replica.spans:
            if span.first <= index < span.end:
                yield replica, span.device


def _unlike(indices: Sequence[int], assignment: Assignment, profile: CostProfile) -> list[int]:
    """Return the layers, of those with the same costs on the same devices only the first."""
    first: dict[object, int] = {}
    for index in indices:
        layer = dataclasses.replace(profile.model.layers[index], name="")
        devices = tuple(device for _, device in _holders(index, assignment))
        times = tuple(of_type[index] for of_type in profile.times.values())
        read = entering_bytes(profile.model, index)
        first.setdefault((layer, devices, times, read), index)
    return list(first.values())
