"""Obvious alternatives to the best plan, and the reason why each was rejected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from evener.cost_model.assignment import HOST_OWNER, Assignment, ReplicaAssignment, Span
from evener.cost_model.memory import MemoryPrediction, shortages
from evener.cost_model.ownership import spread_owners
from evener.cost_model.prediction import Prediction, predict
from evener.plan.parts import Rejected
from evener.plan.shares import split_batch
from evener.planner.candidates import Candidate, is_interleaved
from evener.planner.groupings import kind_of
from evener.profile import CostProfile
from evener.units import format_bytes, format_seconds

_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Alternative plan.

    Args:
        layout: Description of the plan.
        assignment: Layers that each device computes and owns.
        prediction: Predicted costs.
    """

    layout: str
    assignment: Assignment
    prediction: Prediction


def alternatives(profile: CostProfile, batch_size: int) -> Iterator[Alternative]:
    """Yield plans with even shares, with each kind of device alone, and with even stages."""
    num_devices = len(profile.cluster.devices)
    if num_devices > 1:
        yield _alternative(
            "even shares", _replicas(profile, range(num_devices), batch_size), profile
        )
    kinds: dict[tuple[str, int], int] = {}
    for device in range(num_devices):
        kinds.setdefault(kind_of(device, profile.cluster), device)
    for device in kinds.values():
        name = profile.cluster.devices[device].name
        replicas = _replicas(profile, [device], batch_size)
        yield _alternative(f"{name} alone", replicas, profile)
    num_layers = len(profile.model.layers)
    if 1 < num_devices <= min(num_layers, batch_size):
        yield _alternative("even stages", (_even_stages(profile, batch_size),), profile)


def describe(assignment: Assignment, profile: CostProfile) -> str:
    """Return a short description of an assignment."""
    replicas = assignment.replicas
    depths = sorted({len(replica.spans) for replica in replicas})
    if len(replicas) == 1:
        spans = replicas[0].spans
        names = ", ".join(profile.cluster.devices[span.device].name for span in spans)
        text = f"{names} alone" if len(spans) == 1 else f"{len(spans)} stages on {names}"
    elif depths == [1]:
        text = f"{len(replicas)} replicas"
    else:
        listed = " or ".join(str(depth) for depth in depths)
        text = f"{len(replicas)} replicas of {listed} stages"
    counts = {replica.num_micro_batches for replica in replicas}
    if max(counts) > 1:
        text += f", up to {max(counts)} micro-batches"
    text += "".join(f", {specialty}" for specialty in specialties(assignment))
    if HOST_OWNER in assignment.owners:
        text += ", variables on the host"
    return text


def specialties(assignment: Assignment) -> Iterator[str]:
    """Yield descriptions of the unusual parts of a plan: its schedule, recomputed layers."""
    replicas = assignment.replicas
    if any(map(is_interleaved, replicas)):
        yield "stages interleaved"
    for schedule in sorted({r.schedule for r in replicas if len(r.spans) > 1} - {"1f1b"}):
        yield f"schedule {schedule}"
    num_recomputed, num_layers = sum(assignment.recompute), len(assignment.recompute)
    if num_recomputed:
        yield f"{num_recomputed} of {num_layers} layers recomputed"


def rejected(
    best: Candidate, considered: Iterable[Candidate], profile: CostProfile
) -> tuple[Rejected, ...]:
    """Return the reasons why plans were rejected, without plans that equal the best.

    Args:
        best: Best plan of a search.
        considered: Other plans of the search.
        profile: Costs of the layers on the devices.
    """
    others = [
        Alternative(
            layout=describe(candidate.assignment, profile),
            assignment=candidate.assignment,
            prediction=candidate.prediction,
        )
        for candidate in considered
    ]
    found: dict[str, Rejected] = {}
    for other in (*alternatives(profile, best.assignment.batch_size), *others):
        if _is_same(other.assignment, best.assignment):
            continue
        reason = _reason(best, other, profile)
        found.setdefault(other.layout, Rejected(layout=other.layout, reason=reason))
    return tuple(found.values())[:_MOST_SHOWN]


def lacks(memory: Mapping[int, MemoryPrediction], profile: CostProfile) -> str:
    """Return the memory shortage of the device that lacks most; empty if all have enough."""
    short = max(shortages(memory, profile.cluster), key=lambda shortage: shortage[1], default=None)
    if short is None:
        return ""
    device, missing = short
    name = "the host" if device == HOST_OWNER else profile.cluster.devices[device].name
    needed = memory[device].total
    return f"{name} needs {format_bytes(needed)} and has {format_bytes(needed - missing)}"


def _reason(best: Candidate, other: Alternative, profile: CostProfile) -> str:
    short = lacks(other.prediction.memory, profile)
    if short:
        return short
    seconds = other.prediction.step_seconds
    times = seconds / best.prediction.step_seconds
    text = f"{format_seconds(seconds)} a step"
    text += f", {times:.2f} times as long" if times >= 1.005 else ", about as fast"
    slowest = other.prediction.slowest
    parts = {
        "computing": slowest.compute_seconds,
        "waiting for other stages": slowest.bubble_seconds,
        "waiting for weights and gradients": slowest.communication_seconds,
    }
    longest = max(parts, key=lambda name: parts[name])
    share = parts[longest] / slowest.seconds if slowest.seconds else 0.0
    return f"{text}: {share:.0%} of it {longest}"


def _is_same(assignment: Assignment, other: Assignment) -> bool:
    return assignment.replicas == other.replicas and assignment.recompute == other.recompute


def _alternative(
    layout: str, replicas: tuple[ReplicaAssignment, ...], profile: CostProfile
) -> Alternative:
    layers = profile.model.layers
    assignment = Assignment(
        replicas=replicas,
        owners=spread_owners(layers, replicas, profile.cluster),
        recompute=(False,) * len(layers),
    )
    return Alternative(
        layout=layout, assignment=assignment, prediction=predict(assignment, profile)
    )


def _replicas(
    profile: CostProfile, devices: range | list[int], batch_size: int
) -> tuple[ReplicaAssignment, ...]:
    shares = split_batch(batch_size, [1.0] * len(devices))
    whole = len(profile.model.layers)
    return tuple(
        ReplicaAssignment(samples=samples, spans=(Span(device, 0, whole),))
        for device, samples in zip(devices, shares, strict=True)
        if samples
    )


def _even_stages(profile: CostProfile, batch_size: int) -> ReplicaAssignment:
    num_stages, num_layers = len(profile.cluster.devices), len(profile.model.layers)
    cuts = [stage * num_layers // num_stages for stage in range(num_stages + 1)]
    count = min(batch_size, 4 * num_stages)
    return ReplicaAssignment(
        samples=batch_size,
        spans=tuple(Span(k, cuts[k], cuts[k + 1]) for k in range(num_stages)),
        num_micro_batches=2 ** int(math.log2(count)),
        in_flight=min(num_stages, count),
    )
