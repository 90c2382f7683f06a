"""From a cost profile and a batch size to a Plan.

The search, simpler plans that are as fast, the rejected alternatives with the reason for each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from evener.base.text import ShownAsText, format_bytes, format_seconds
from evener.errors import PlanError
from evener.plan.parts import HOST, Predicted, Rejected
from evener.plan.plan import Plan, split_batch
from evener.plan.profile import Cluster, CostProfile
from evener.planner.assignment import (
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    assignment_of,
    plan_of,
    spread_owners,
)
from evener.planner.candidates import Candidate, is_interleaved
from evener.planner.groups import MOST_FOR_ALL, kind_of
from evener.planner.memory import MemoryPrediction, shortages
from evener.planner.prediction import Prediction, busy_seconds, predict
from evener.planner.search import Choices, SearchResult, search_plan

# Obvious alternatives to the best plan, and the reason why each was rejected.

_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Alternative plan."""

    layout: str  # Description of the plan
    assignment: Assignment  # Layers that each device computes and owns
    prediction: Prediction  # Predicted costs


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
    """Return the reasons why plans were rejected, without plans that equal the best."""
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


# Ties: what differs by less than the noise of measuring is decided for the simpler plan.
#
# ::
#
#     one device  <  even shares  <  uneven shares  <  pipeline
#
# Micro-batches that no pipeline needs are there to save memory. Times of layers at few samples are
# too uncertain to split a batch for speed: each micro-batch is another call of every task.


def simplest_of_equal(
    best: Candidate, considered: Iterable[Candidate], profile: CostProfile, *, noise: float
) -> Candidate:
    """Return the simplest plan that is as fast as the best, up to the noise of measuring."""
    candidates = [
        best,
        *considered,
        *(
            _candidate(other.assignment, other.prediction, profile)
            for other in alternatives(profile, best.assignment.batch_size)
        ),
    ]
    if noise:
        candidates = [_without_needless_micro_batches(each, profile) for each in candidates]
        if candidates[0] is not best:
            best = min(filter(_fits, candidates), key=_seconds)
    most = _seconds(best) * (1 + noise)
    equal = [each for each in candidates if each.fits and _seconds(each) <= most]
    # The first of several: plans of the same kind keep the order of the search.
    return min(
        (best, *equal),
        key=lambda candidate: (
            complexity(candidate.assignment),
            _is_split_in_time(candidate.assignment),
            candidate is not best,
            _seconds(candidate),
        ),
    )


def _fits(candidate: Candidate) -> bool:
    return candidate.fits


def _seconds(candidate: Candidate) -> float:
    return candidate.prediction.step_seconds


def _candidate(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> Candidate:
    return Candidate(
        grouping=tuple(replica.devices for replica in assignment.replicas),
        assignment=assignment,
        prediction=prediction,
        shortages=tuple(shortages(prediction.memory, profile.cluster)),
    )


def _without_needless_micro_batches(candidate: Candidate, profile: CostProfile) -> Candidate:
    """Return a candidate whose replicas without stages are not split, if it fits then."""
    assignment = candidate.assignment
    if not _is_split_in_time(assignment):
        return candidate
    replicas = tuple(
        dataclasses.replace(replica, num_micro_batches=1, in_flight=1)
        if len(replica.spans) == 1
        else replica
        for replica in assignment.replicas
    )
    whole = dataclasses.replace(assignment, replicas=replicas)
    found = _candidate(whole, predict(whole, profile), profile)
    return found if found.fits else candidate


def _is_split_in_time(assignment: Assignment) -> bool:
    """Whether replicas have micro-batches that no pipeline needs."""
    return any(len(r.spans) == 1 and r.num_micro_batches > 1 for r in assignment.replicas)


def complexity(assignment: Assignment) -> int:
    """Return how complex a layout is, from 0 for one device to 3 for a pipeline."""
    replicas = assignment.replicas
    if any(len(replica.spans) > 1 for replica in replicas):
        return 3
    if len(replicas) == 1:
        return 0
    samples = [replica.samples for replica in replicas]
    return 1 if max(samples) - min(samples) <= 1 else 2


# Planning for a profile: the best plan, its prediction and the rejected alternatives.

BatchSize = int | Literal["max", "auto"]
"""Number of samples; ``"max"``: the most that fit without micro-batches and recomputation;
``"auto"``: the fewest with nearly the highest throughput."""

MOST_DEVICES = 2048
"""Largest number of devices that are planned for; the search takes seconds for as many."""

_MOST_SAMPLES = 2**20
_NEARLY = 0.95
_WORTH = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(ShownAsText):
    """Plan with its prediction.

    Args:
        plan: Plan with `Plan.predicted` and `Plan.rejected`.
        assignment: Layers and samples of each device by the plan.
        prediction: Predicted costs of a step.
        profile: Profile that the prediction is from.
        remedies: Changes of the cluster that would make the step faster, the best first.
        problem: Device that lacks memory, with numbers; empty if all have enough.
    """

    plan: Plan
    assignment: Assignment
    prediction: Prediction
    profile: CostProfile
    remedies: tuple[str, ...] = ()
    problem: str = ""

    @property
    def batch_size(self) -> int:
        """The samples of the global batch."""
        return self.assignment.batch_size

    def __str__(self) -> str:
        """Return the plan as a table, and what would make it faster."""
        lines = [str(self.plan)]
        if self.problem:
            lines += ["", f"Does not fit: {self.problem}."]
        if self.remedies:
            lines += ["", "What would help", *(f"  {remedy}" for remedy in self.remedies)]
        return "\n".join(lines)


def plan_profile(
    profile: CostProfile, batch_size: BatchSize, choices: Choices | None = None
) -> Planned:
    """Return the best plan.

    Args:
        profile: Costs of the layers on the devices.
        batch_size: Samples of the global batch; see `BatchSize`.
        choices: Choices of the search; None for the default ones.

    Raises:
        PlanError: PLAN-042 for an impossible batch size, PLAN-043 if nothing fits, PLAN-054 for
            more than `MOST_DEVICES` devices.
    """
    choices = choices or Choices()
    check_batch_size(batch_size)
    _check_num_devices(profile.cluster)
    if isinstance(batch_size, str):
        num_samples, found = _chosen(profile, batch_size, choices)
    else:
        num_samples = batch_size
        found = search_plan(profile, num_samples, choices)
    if found.best is None:
        raise _nothing_fits(profile, num_samples, found, choices)
    best = simplest_of_equal(found.best, found.considered, profile, noise=choices.noise)
    considered = found.considered if best is found.best else (found.best, *found.considered)
    return Planned(
        plan=plan_of(
            best.assignment,
            profile.model,
            profile.cluster,
            predicted=predicted(best.assignment, best.prediction, profile),
            rejected=rejected(best, considered, profile),
        ),
        assignment=best.assignment,
        prediction=best.prediction,
        profile=profile,
        remedies=tuple(_remedies(profile, num_samples, best, choices)),
    )


def check_plan(plan: Plan, profile: CostProfile, batch_size: int) -> Planned:
    """Return a written plan with its prediction, whether it fits or not.

    Args:
        plan: Plan for devices of the profile and layers of its model.
        profile: Costs of the layers on the devices.
        batch_size: Samples of the global batch.

    Raises:
        PlanError: PLAN-042 for an impossible batch size, PLAN-029, PLAN-040 or PLAN-041 if the plan
            is not for these devices and layers.
    """
    check_batch_size(batch_size, words=False)
    assignment = assignment_of(plan, profile.model, profile.cluster, batch_size)
    found = predict(assignment, profile)
    return Planned(
        plan=dataclasses.replace(plan, predicted=predicted(assignment, found, profile)),
        assignment=assignment,
        prediction=found,
        profile=profile,
        problem=lacks(found.memory, profile),
    )


def predicted(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> Predicted:
    """Return the prediction of an assignment by device name, as a plan stores it."""
    names = {index: device.name for index, device in enumerate(profile.cluster.devices)}
    names[HOST_OWNER] = HOST
    busy = busy_seconds(assignment, prediction)
    return Predicted(
        step_seconds=prediction.step_seconds,
        peak_bytes={names[index]: needed.total for index, needed in prediction.memory.items()},
        busy_seconds={names[index]: seconds for index, seconds in busy.items()},
        batch_size=assignment.batch_size,
    )


def check_batch_size(batch_size: object, *, words: bool = True) -> None:
    """Refuse an impossible batch size."""
    if isinstance(batch_size, int) and not isinstance(batch_size, bool):
        if 1 <= batch_size <= _MOST_SAMPLES:
            return
    elif words and batch_size in ("max", "auto"):
        return
    raise PlanError(
        "PLAN-042",
        f"There is no plan for a batch of {batch_size!r} samples.",
        why=f"The number of samples must be from 1 to {_MOST_SAMPLES}"
        + (", or one of the words 'max' and 'auto'." if words else "."),
        fix="Write for example 256" + (", or max, or auto." if words else "."),
    )


def _check_num_devices(cluster: Cluster) -> None:
    num_devices = len(cluster.devices)
    if num_devices <= MOST_DEVICES:
        return
    parts = -(-num_devices // MOST_DEVICES)
    raise PlanError(
        "PLAN-054",
        f"There is no search for a plan on {num_devices:,} devices.",
        why=f"A plan names every device, and the search takes minutes and more beyond "
        f"{MOST_DEVICES:,}.",
        fix=f"Plan for a part of the cluster: 1/{parts} of its machines with 1/{parts} of the "
        "batch. Equal parts compute alike; the prediction lacks the exchange between them.",
    )


def _chosen(
    profile: CostProfile, wanted: Literal["max", "auto"], choices: Choices
) -> tuple[int, SearchResult]:
    """Return the batch size for ``"max"`` or ``"auto"``, with its search result."""
    # With micro-batches and recomputation nearly every batch fits, and is no faster.
    at_once = Choices(num_micro_batches=(1,), recompute=False, host=False)
    if wanted == "max" and search_plan(profile, 1, at_once).best is not None:
        choices = at_once
    fitting: list[tuple[int, SearchResult]] = []
    samples = 1
    while samples <= _MOST_SAMPLES:
        found = search_plan(profile, samples, choices)
        if found.best is None:
            break
        fitting.append((samples, found))
        if wanted == "auto" and _has_levelled(fitting):
            break
        samples *= 2
    if not fitting:
        return 1, search_plan(profile, 1, choices)
    if wanted == "auto":
        most = max(map(_throughput, fitting))
        return next(sized for sized in fitting if _throughput(sized) >= _NEARLY * most)
    return _largest(profile, fitting[-1], choices)


def _largest(
    profile: CostProfile, fits: tuple[int, SearchResult], choices: Choices
) -> tuple[int, SearchResult]:
    """Return the largest fitting batch from one that fits up to its double, within 1/16."""
    low, high = fits[0], 2 * fits[0]
    step = max(1, low // 16)
    while high - low > step:
        middle = (low + high) // 2
        found = search_plan(profile, middle, choices)
        if found.best is None:
            high = middle
        else:
            low, fits = middle, (middle, found)
    return fits


def _throughput(sized: tuple[int, SearchResult]) -> float:
    samples, found = sized
    return samples / found.prediction.step_seconds


def _has_levelled(found: list[tuple[int, SearchResult]]) -> bool:
    """Whether the last two doublings raised the throughput by less than 1%."""
    if len(found) < 3:
        return False
    before, last = _throughput(found[-3]), max(map(_throughput, found[-2:]))
    return last < before * 1.01


def _remedies(
    profile: CostProfile, batch_size: int, best: Candidate, choices: Choices
) -> Iterator[str]:
    """Yield changes of the cluster that make the step faster; none for large clusters: too slow."""
    if len(profile.cluster.devices) > MOST_FOR_ALL:
        return
    now = best.prediction.step_seconds
    remedies: list[tuple[float, str]] = []
    for label, cluster, device in _changed_clusters(profile.cluster):
        found = search_plan(dataclasses.replace(profile, cluster=cluster), batch_size, choices)
        if found.best is None:
            continue
        gain = now / found.prediction.step_seconds
        if gain < _WORTH:
            continue
        if device is not None:
            needed = found.prediction.memory.get(device)
            had = profile.cluster.devices[device].memory_bytes or 0
            more = 0 if needed is None else needed.total - had
            if more <= 0:
                continue
            label = f"{format_bytes(more)} more on {label}"
        remedies.append((gain, f"{label}: {gain:.2f} times as fast"))
    for _, text in sorted(remedies, reverse=True):
        yield text


def _changed_clusters(cluster: Cluster) -> Iterator[tuple[str, Cluster, int | None]]:
    """Yield clusters with more memory on one device, or faster links."""
    seen: set[tuple[str, int]] = set()
    for index, device in enumerate(cluster.devices):
        kind = kind_of(index, cluster)
        if device.memory_bytes is not None and kind not in seen:
            seen.add(kind)
            devices = list(cluster.devices)
            devices[index] = dataclasses.replace(device, memory_bytes=None)
            yield device.name, dataclasses.replace(cluster, devices=tuple(devices)), index
    machines = tuple(
        dataclasses.replace(
            machine,
            link=dataclasses.replace(
                machine.link, bytes_per_second=2 * machine.link.bytes_per_second
            ),
        )
        for machine in cluster.machines
    )
    yield "links of twice the bandwidth", dataclasses.replace(cluster, machines=machines), None


def _nothing_fits(
    profile: CostProfile, batch_size: int, found: SearchResult, choices: Choices
) -> PlanError:
    nearest = min(
        found.considered,
        key=lambda candidate: sum(missing for _, missing in candidate.shortages),
        default=None,
    )
    why = "No device has memory for it."
    if nearest is not None:
        why = (
            f"What comes nearest is {describe(nearest.assignment, profile)}: "
            f"{lacks(nearest.prediction.memory, profile)}."
        )
    smaller = batch_size // 2
    while smaller >= 1 and search_plan(profile, smaller, choices).best is None:
        smaller //= 2
    fix = f"Use a batch of {smaller}, which fits." if smaller else _more_memory(nearest, profile)
    return PlanError(
        "PLAN-043",
        f"{profile.model.name or 'The model'} fits nowhere with a batch of {batch_size}.",
        why=why,
        fix=fix,
    )


def _more_memory(nearest: Candidate | None, profile: CostProfile) -> str:
    """Return the remedy for a model of which not even one sample fits."""
    if nearest is None:
        return "Add a device."
    text = lacks(nearest.prediction.memory, profile)
    total = sum(missing for _, missing in nearest.shortages)
    return f"Add devices with {format_bytes(total)} together, or use smaller layers: {text}."


# The two simplest plans beside the best: the best device alone, and even shares on all.


def plans_to_try(planned: Planned) -> tuple[Plan, ...]:
    """Return a plan with the two simplest ones, from the simplest to the least simple.

    A simple plan that does not fit into memory by its prediction is left out.
    """
    profile = planned.profile
    fitting = [
        other
        for other in alternatives(profile, planned.batch_size)
        if len(other.assignment.replicas[0].spans) == 1
        and not lacks(other.prediction.memory, profile)
    ]
    alone = [other for other in fitting if len(other.assignment.replicas) == 1]
    even = [other for other in fitting if len(other.assignment.replicas) > 1]
    alone.sort(key=lambda other: other.prediction.step_seconds)
    found: list[Plan] = []
    is_there = False
    for other in (*alone[:1], *even[:1]):
        if (other.assignment.replicas, other.assignment.recompute) == (
            planned.assignment.replicas,
            planned.assignment.recompute,
        ):
            is_there = True
            found.append(planned.plan)
        else:
            found.append(plan_of(other.assignment, profile.model, profile.cluster))
    return tuple(found if is_there else [*found, planned.plan])
