"""Which layers are computed again: as few as the memory of the devices asks for.

::

    all computed again | a b c d e |    memory left on each device
    given back         |   b   d   |    those that save the most seconds for each byte they keep

Layers are given back in the order of the seconds that they no longer take again, by the part of the
memory that their activations fill where there is least of it. What is kept longer only adds to what
is needed at any moment, so that no device runs out.
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
"""How often memory that is still left is shared out again."""

_MOST_TRIED, _MOST_SWAPS = 4, 100

Predict = Callable[[Assignment], Prediction]


def with_all_recomputed(assignment: Assignment, profile: CostProfile) -> Assignment:
    """Return an assignment in which each layer is computed again that keeps more than it reads."""
    return dataclasses.replace(assignment, recompute=recomputed_layers(profile.model))


def give_back(
    assignment: Assignment, prediction: Prediction, profile: CostProfile, predict: Predict
) -> tuple[Assignment, Prediction]:
    """Return an assignment in which fewer layers are computed again, with what it costs.

    Args:
        assignment: Of which some layers are computed again; it fits into memory.
        prediction: Of it.
        profile: What layers cost.
        predict: Predicts other assignments.
    """
    found = assignment, prediction
    for _ in range(_MOST_TIMES):
        given = _given(*found, profile)
        fewer = _without(*found, given, profile, predict) if given else None
        if fewer is None:
            break
        found = fewer
    for _ in range(_MOST_TIMES):
        nearly = itertools.islice(_nearly(*found, profile), _MOST_TRIED)
        ways = (_without(*found, {one}, profile, predict) for one in nearly)
        fewer = next((one for one in ways if one is not None), None)
        if fewer is None:
            break
        found = fewer
    return found


def _without(
    assignment: Assignment,
    prediction: Prediction,
    given: Collection[int],
    profile: CostProfile,
    predict: Predict,
) -> tuple[Assignment, Prediction] | None:
    """Return an assignment with the activations of more layers kept; None if it does not fit."""
    recompute = tuple(
        is_recomputed and place not in given
        for place, is_recomputed in enumerate(assignment.recompute)
    )
    if not any(recompute):
        return None
    fewer = dataclasses.replace(assignment, recompute=recompute)
    found = predict(fewer)
    return None if min(_left(found, profile).values(), default=0.0) < 0 else (fewer, found)


def swaps(assignment: Assignment, profile: CostProfile) -> Iterator[Assignment]:
    """Yield assignments in which one or two layers fewer are computed again, or others instead."""
    may_be = recomputed_layers(profile.model)
    recompute = assignment.recompute
    places = [k for k, one in enumerate(recompute) if one]
    recomputed = _unlike(places, assignment, profile)
    # Of layers that are alike, two may be given back together.
    others = _unlike([k for k in places if k not in recomputed], assignment, profile)
    pairs = itertools.combinations(sorted([*recomputed, *others]), 2)
    kept = [k for k, one in enumerate(recompute) if not one and may_be[k]]
    instead = _unlike(kept, assignment, profile)
    less = [*((one,) for one in recomputed), *pairs]
    more = [(), *((one,) for one in instead)]
    ways = itertools.chain(
        itertools.product(less, more),
        itertools.product(less, itertools.combinations(instead, 2)),
    )
    for given, taken in itertools.islice(ways, _MOST_SWAPS):
        changed = tuple(
            place in taken or (one and place not in given) for place, one in enumerate(recompute)
        )
        yield dataclasses.replace(assignment, recompute=changed)


def _given(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> set[int]:
    """Return the layers that can be given back their activations, as far as memory is left."""
    left = _left(prediction, profile)
    needs = _needed_bytes(assignment, prediction, profile)
    given: set[int] = set()
    for place in _by_worth(assignment, needs, left, profile):
        if all(more <= left[device] for device, more, _ in needs[place] if device in left):
            given.add(place)
            for device, more, _ in needs[place]:
                if device in left:
                    left[device] -= more
    return given


def _nearly(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> Iterator[int]:
    """Yield layers for which there is room if their own backward pass is the worst moment.

    There, what is computed again is in memory anyway.
    """
    left = _left(prediction, profile)
    needs = _needed_bytes(assignment, prediction, profile)
    worth = _by_worth(assignment, needs, left, profile)
    for place in _unlike(worth, assignment, profile):
        if all(
            more - anyway <= left[device] for device, more, anyway in needs[place] if device in left
        ):
            yield place


_Needs = Mapping[int, Sequence[tuple[int, float, float]]]


def _by_worth(
    assignment: Assignment, needs: _Needs, left: Mapping[int, float], profile: CostProfile
) -> list[int]:
    """Return the layers that are computed again, the most worth their memory first."""

    def filled(place: int) -> float:
        return max(
            (more / max(left[device], 1.0) for device, more, _ in needs[place] if device in left),
            default=0.0,
        )

    def saved(place: int) -> float:
        return _again_seconds(place, assignment, profile) / max(filled(place), 1e-12)

    recomputed = [place for place, one in enumerate(assignment.recompute) if one]
    return sorted(recomputed, key=saved, reverse=True)


def _needed_bytes(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> _Needs:
    """Return for each layer what its activations need on each device, if they are kept.

    With the device and these bytes, those that are there in its backward pass in any case.
    """
    model = profile.model
    last_barrier = model.last_barrier if step_has_barriers(assignment, model) else -1
    needs: dict[int, list[tuple[int, float, float]]] = {k: [] for k in range(len(model.layers))}
    for replica, times in zip(assignment.replicas, prediction.timelines, strict=True):
        live = (replica.in_flight,) if times is None else times.peak_live
        for span, alive in zip(replica.spans, live, strict=True):
            for place in span.layers:
                kept = model.layers[place].activation_bytes - entering_bytes(model, place)
                count = replica.num_micro_batches if place <= last_barrier else alive
                size = replica.micro_batch
                anyway = model.layers[place].activation_bytes * size
                needs[place].append((span.device, kept * count * size, anyway))
    return needs


def _left(prediction: Prediction, profile: CostProfile) -> dict[int, float]:
    """Return the bytes that devices with a limit have left."""
    limits = [device.memory_bytes for device in profile.cluster.devices]
    return {
        device: limit - needed.total
        for device, needed in prediction.memory.items()
        if device >= 0 and (limit := limits[device]) is not None
    }


def _again_seconds(place: int, assignment: Assignment, profile: CostProfile) -> float:
    """Return how long it takes to compute a layer again, in the replica that takes longest."""
    return max(
        replica.num_micro_batches
        * profile.times[profile.cluster.devices[device].type][place].forward(replica.micro_batch)
        for replica, device in _holders(place, assignment)
    )


def _holders(place: int, assignment: Assignment) -> Iterator[tuple[ReplicaAssignment, int]]:
    for replica in assignment.replicas:
        for span in replica.spans:
            if span.first <= place < span.end:
                yield replica, span.device


def _unlike(places: Sequence[int], assignment: Assignment, profile: CostProfile) -> list[int]:
    """Return the first of all layers that cost the same on the same devices."""
    first: dict[object, int] = {}
    for place in places:
        layer = dataclasses.replace(profile.model.layers[place], name="")
        devices = tuple(device for _, device in _holders(place, assignment))
        times = tuple(of_type[place] for of_type in profile.times.values())
        read = entering_bytes(profile.model, place)
        first.setdefault((layer, devices, times, read), place)
    return list(first.values())
