"""From a cost profile and a batch size to a Plan.

The search finds the fastest plan; a simpler one takes its place if it is as fast. Rejected
alternatives come with their reasons, and changes of the cluster that would help with their gain.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evener.base.notebook import ShownAsText
from evener.base.text import format_bytes, format_seconds
from evener.errors import PlanError
from evener.plan.parts import HOST, Predicted, Rejected
from evener.plan.plan import Plan, split_batch
from evener.plan.profile import Cluster, CostProfile, Machine
from evener.planner.assignment import (
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    assignment_of,
    plan_of,
    spans_of,
    spread_owners,
)
from evener.planner.candidates import Candidate, Choices, PlanEvaluator
from evener.planner.groups import MOST_FOR_ALL, first_of_each, kind_of
from evener.planner.memory import MemoryPrediction, shortages
from evener.planner.prediction import MOST_SAMPLES, Prediction, busy_seconds, predict
from evener.planner.search import SearchResult, search_plan

BatchSize = int | Literal["max", "auto"]
"""Number of samples; ``"max"``: the most that fit without micro-batches and recomputation, at most
`MOST_SAMPLES`;
``"auto"``: the fewest with nearly the highest throughput."""

MOST_DEVICES = 2048
"""Largest number of devices that are planned for; the search takes seconds for as many."""

_NEARLY = 0.95
_WORTH = 1.02
_MOST_SHOWN = 6


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
    num_devices = len(profile.cluster.devices)
    if num_devices > MOST_DEVICES:
        parts = -(-num_devices // MOST_DEVICES)
        raise PlanError(
            "PLAN-054",
            f"There is no search for a plan on {num_devices:,} devices.",
            why=f"A plan names every device, and the search takes minutes and more beyond "
            f"{MOST_DEVICES:,}.",
            fix=f"Plan for a part of the cluster: 1/{parts} of its machines with 1/{parts} of the "
            "batch. Equal parts compute alike; the prediction lacks the exchange between them.",
        )
    if isinstance(batch_size, str):
        num_samples, result = _choose_batch_size(profile, batch_size, choices)
    else:
        num_samples, result = batch_size, search_plan(profile, batch_size, choices)
    if result.best is None:
        raise _nothing_fits(profile, num_samples, result, choices)
    best = simplest_of_equal(result.best, result.considered, profile, noise=choices.noise)
    considered = result.considered if best is result.best else (result.best, *result.considered)
    return Planned(
        plan=plan_of(
            best.assignment,
            profile.model,
            profile.cluster,
            predicted=_by_name(best.assignment, best.prediction, profile),
            rejected=rejected(best, considered, profile),
        ),
        assignment=best.assignment,
        prediction=best.prediction,
        profile=profile,
        remedies=_remedies(profile, num_samples, best, choices),
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
    prediction = predict(assignment, profile)
    return Planned(
        plan=dataclasses.replace(plan, predicted=_by_name(assignment, prediction, profile)),
        assignment=assignment,
        prediction=prediction,
        profile=profile,
        problem=shortage(prediction.memory, profile),
    )


def plans_to_try(planned: Planned) -> tuple[Plan, ...]:
    """Return the best device alone, even shares on all devices, and the plan, each once."""
    profile = planned.profile
    fitting = [
        other
        for _, other in alternatives(profile, planned.batch_size)
        if len(other.assignment.replicas[0].spans) == 1 and other.fits
    ]
    even = [other for other in fitting if len(other.assignment.replicas) > 1]
    alone = [other for other in fitting if len(other.assignment.replicas) == 1]
    alone.sort(key=_seconds)
    plans = [
        planned.plan
        if _is_same(other.assignment, planned.assignment)
        else plan_of(other.assignment, profile.model, profile.cluster)
        for other in (*alone[:1], *even[:1])
    ]
    return tuple(plans if any(plan is planned.plan for plan in plans) else [*plans, planned.plan])


def check_batch_size(batch_size: object, *, words: bool = True) -> None:
    if isinstance(batch_size, int) and not isinstance(batch_size, bool):
        if 1 <= batch_size <= MOST_SAMPLES:
            return
    elif words and batch_size in ("max", "auto"):
        return
    raise PlanError(
        "PLAN-042",
        f"There is no plan for a batch of {batch_size!r} samples.",
        why=f"The number of samples must be from 1 to {MOST_SAMPLES}"
        + (", or one of the words 'max' and 'auto'." if words else "."),
        fix="Write for example 256" + (", or max, or auto." if words else "."),
    )


def _by_name(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> Predicted:
    names = {index: device.name for index, device in enumerate(profile.cluster.devices)}
    names[HOST_OWNER] = HOST
    busy = busy_seconds(assignment, prediction)
    return Predicted(
        step_seconds=prediction.step_seconds,
        peak_bytes={names[index]: needed.total for index, needed in prediction.memory.items()},
        busy_seconds={names[index]: seconds for index, seconds in busy.items()},
        batch_size=assignment.batch_size,
    )


def _choose_batch_size(
    profile: CostProfile, wanted: Literal["max", "auto"], choices: Choices
) -> tuple[int, SearchResult]:
    # With micro-batches and recomputation nearly every batch fits, and is no faster.
    at_once = Choices(num_micro_batches=(1,), recompute=False, host=False)
    if wanted == "max" and search_plan(profile, 1, at_once).best is not None:
        choices = at_once
    fitting: list[tuple[int, SearchResult]] = []
    speeds: list[float] = []
    samples = 1
    while samples <= MOST_SAMPLES:
        result = search_plan(profile, samples, choices)
        if result.best is None:
            break
        fitting.append((samples, result))
        speeds.append(samples / result.best.prediction.step_seconds)
        # The last two doublings raised the throughput by less than 1 %.
        if wanted == "auto" and len(speeds) > 2 and max(speeds[-2:]) < speeds[-3] * 1.01:
            break
        samples *= 2
    if not fitting:
        return 1, search_plan(profile, 1, choices)
    if wanted == "auto":
        enough = _NEARLY * max(speeds)
        return next(f for f, speed in zip(fitting, speeds, strict=True) if speed >= enough)
    # The largest batch up to the double of the last one that fits, within 1/16.
    low, result = fitting[-1]
    high, step = min(2 * low, MOST_SAMPLES + 1), max(1, low // 16)
    while high - low > step:
        middle = (low + high) // 2
        larger = search_plan(profile, middle, choices)
        if larger.best is None:
            high = middle
        else:
            low, result = middle, larger
    return low, result


def alternatives(profile: CostProfile, batch_size: int) -> Iterator[tuple[str, Candidate]]:
    cluster, layers = profile.cluster, profile.model.layers
    num_devices, num_layers = len(cluster.devices), len(layers)

    def candidate(replicas: Iterable[ReplicaAssignment]) -> Candidate:
        replicas = tuple(replicas)
        owners = spread_owners(layers, replicas, cluster)
        recompute = (False,) * num_layers
        return PlanEvaluator(profile, Choices()).candidate(
            Assignment(replicas=replicas, owners=owners, recompute=recompute)
        )

    def whole(devices: Sequence[int]) -> Candidate:
        shares = split_batch(batch_size, [1.0] * len(devices))
        return candidate(
            ReplicaAssignment(samples=samples, spans=(Span(device, 0, num_layers),))
            for device, samples in zip(devices, shares, strict=True)
            if samples
        )

    if num_devices > 1:
        yield "even shares", whole(range(num_devices))
    for device in first_of_each(range(num_devices), lambda device: kind_of(device, cluster)):
        yield f"{cluster.devices[device].name} alone", whole([device])
    if 1 < num_devices <= min(num_layers, batch_size):
        cuts = [stage * num_layers // num_devices for stage in range(num_devices + 1)]
        count = min(batch_size, 4 * num_devices)
        even_stages = ReplicaAssignment(
            samples=batch_size,
            spans=spans_of(range(num_devices), cuts),
            num_micro_batches=2 ** int(math.log2(count)),
            in_flight=min(num_devices, count),
        )
        yield "even stages", candidate([even_stages])


def simplest_of_equal(
    best: Candidate, considered: Iterable[Candidate], profile: CostProfile, *, noise: float
) -> Candidate:
    """Return the simplest plan that is as fast as the best, up to the noise of measuring.

    ::

        one device  <  even shares  <  uneven shares  <  pipeline

    Micro-batches that no pipeline needs are there to save memory. Times of layers at few samples
    are too uncertain to split a batch for speed: each micro-batch is another call of every task.
    """
    others = (other for _, other in alternatives(profile, best.assignment.batch_size))
    candidates = [best, *considered, *others]
    if noise:
        for number, each in enumerate(candidates):
            if each.assignment.is_split_in_time:
                replicas = tuple(
                    replica.in_micro_batches(1) if len(replica.spans) == 1 else replica
                    for replica in each.assignment.replicas
                )
                assignment = dataclasses.replace(each.assignment, replicas=replicas)
                whole = PlanEvaluator(profile, Choices()).candidate(assignment)
                candidates[number] = whole if whole.fits else each
        if candidates[0] is not best:
            best = min((each for each in candidates if each.fits), key=_seconds)
    most = _seconds(best) * (1 + noise)
    equal = [each for each in candidates if each.fits and _seconds(each) <= most]
    # The first of several: plans of the same kind keep the order of the search.
    return min(
        (best, *equal),
        key=lambda candidate: (
            complexity(candidate.assignment),
            candidate.assignment.is_split_in_time,
            candidate is not best,
            _seconds(candidate),
        ),
    )


def _seconds(candidate: Candidate) -> float:
    return candidate.prediction.step_seconds


def complexity(assignment: Assignment) -> int:
    replicas = assignment.replicas
    if any(len(replica.spans) > 1 for replica in replicas):
        return 3
    if len(replicas) == 1:
        return 0
    samples = [replica.samples for replica in replicas]
    return 1 if max(samples) - min(samples) <= 1 else 2


def rejected(
    best: Candidate, considered: Iterable[Candidate], profile: CostProfile
) -> tuple[Rejected, ...]:
    named = [(describe(other.assignment, profile), other) for other in considered]
    others = [
        (layout, other.prediction)
        for layout, other in (*alternatives(profile, best.assignment.batch_size), *named)
        if not _is_same(other.assignment, best.assignment)
    ]
    shown = itertools.islice(first_of_each(others, lambda other: other[0]), _MOST_SHOWN)
    return tuple(
        Rejected(layout=layout, reason=_reason(best, other, profile)) for layout, other in shown
    )


def _is_same(assignment: Assignment, other: Assignment) -> bool:
    return assignment.replicas == other.replicas and assignment.recompute == other.recompute


def _reason(best: Candidate, other: Prediction, profile: CostProfile) -> str:
    short = shortage(other.memory, profile)
    if short:
        return short
    times = other.step_seconds / best.prediction.step_seconds
    text = f"{format_seconds(other.step_seconds)} a step"
    text += f", {times:.2f} times as long" if times >= 1.005 else ", about as fast"
    slowest = other.slowest
    parts = {
        "computing": slowest.compute_seconds,
        "waiting for other stages": slowest.bubble_seconds,
        "waiting for weights and gradients": slowest.communication_seconds,
    }
    longest = max(parts, key=lambda name: parts[name])
    share = parts[longest] / slowest.seconds if slowest.seconds else 0.0
    return f"{text}: {share:.0%} of it {longest}"


def shortage(memory: Mapping[int, MemoryPrediction], profile: CostProfile) -> str:
    worst = max(shortages(memory, profile.cluster), key=lambda short: short[1], default=None)
    if worst is None:
        return ""
    device, missing = worst
    name = "the host" if device == HOST_OWNER else profile.cluster.devices[device].name
    needed = memory[device].total
    return f"{name} needs {format_bytes(needed)} and has {format_bytes(needed - missing)}"


def describe(assignment: Assignment, profile: CostProfile) -> str:
    replicas = assignment.replicas
    depths = sorted({len(replica.spans) for replica in replicas})
    if len(replicas) == 1:
        spans = replicas[0].spans
        names = ", ".join(profile.cluster.devices[span.device].name for span in spans)
        text = f"{names} alone" if len(spans) == 1 else f"{len(spans)} stages on {names}"
    elif depths == [1]:
        text = f"{len(replicas)} replicas"
    else:
        text = f"{len(replicas)} replicas of {' or '.join(map(str, depths))} stages"
    most = max(replica.num_micro_batches for replica in replicas)
    if most > 1:
        text += f", up to {most} micro-batches"
    text += "".join(f", {specialty}" for specialty in specialties(assignment))
    if HOST_OWNER in assignment.owners:
        text += ", variables on the host"
    return text


def specialties(assignment: Assignment) -> Iterator[str]:
    """Yield descriptions of the unusual parts of a plan: its schedule, recomputed layers."""
    if any(r.schedule != "1f1b" and len(r.spans) > 1 for r in assignment.replicas):
        yield "schedule gpipe"
    num_recomputed, num_layers = sum(assignment.recompute), len(assignment.recompute)
    if num_recomputed:
        yield f"{num_recomputed} of {num_layers} layers recomputed"


def _remedies(
    profile: CostProfile, batch_size: int, best: Candidate, choices: Choices
) -> tuple[str, ...]:
    """Return changes of a small cluster that make the step faster; of others, it takes too long."""
    cluster = profile.cluster
    if len(cluster.devices) > MOST_FOR_ALL:
        return ()
    replace = dataclasses.replace
    changes: list[tuple[str, Cluster, int | None]] = []
    indices = range(len(cluster.devices))
    for index in first_of_each(indices, lambda index: kind_of(index, cluster)):
        device, devices = cluster.devices[index], list(cluster.devices)
        if device.memory_bytes is not None:
            devices[index] = replace(device, memory_bytes=None)
            changes.append((device.name, replace(cluster, devices=tuple(devices)), index))
    machines: list[Machine] = []
    for machine in cluster.machines:
        link = replace(machine.link, bytes_per_second=2 * machine.link.bytes_per_second)
        machines.append(replace(machine, link=link))
    faster_links = replace(cluster, machines=tuple(machines))
    changes.append(("links of twice the bandwidth", faster_links, None))
    remedies: list[tuple[float, str]] = []
    for label, changed, index in changes:
        result = search_plan(dataclasses.replace(profile, cluster=changed), batch_size, choices)
        if result.best is None:
            continue
        gain = _seconds(best) / _seconds(result.best)
        if index is not None:
            needed = result.best.prediction.memory.get(index)
            more = needed.total - (cluster.devices[index].memory_bytes or 0) if needed else 0
            if more <= 0:
                continue
            label = f"{format_bytes(more)} more on {label}"
        if gain >= _WORTH:
            remedies.append((gain, f"{label}: {gain:.2f} times as fast"))
    return tuple(text for _, text in sorted(remedies, reverse=True))


def _nothing_fits(
    profile: CostProfile, batch_size: int, result: SearchResult, choices: Choices
) -> PlanError:
    nearest = min(
        result.considered,
        key=lambda candidate: sum(missing for _, missing in candidate.shortages),
        default=None,
    )
    why, fix = "No device has memory for it.", "Add a device."
    if nearest is not None:
        short = shortage(nearest.prediction.memory, profile)
        why = f"What comes nearest is {describe(nearest.assignment, profile)}: {short}."
        total = sum(missing for _, missing in nearest.shortages)
        fix = f"Add devices with {format_bytes(total)} together, or use smaller layers: {short}."
    smaller = batch_size // 2
    while smaller >= 1 and search_plan(profile, smaller, choices).best is None:
        smaller //= 2
    return PlanError(
        "PLAN-043",
        f"{profile.model.name or 'The model'} fits nowhere with a batch of {batch_size}.",
        why=why,
        fix=f"Use a batch of {smaller}, which fits." if smaller else fix,
    )
