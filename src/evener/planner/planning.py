"""Planning for a profile: the best plan, its prediction and the rejected alternatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from evener.cost_model.assignment import HOST_OWNER, Assignment
from evener.cost_model.conversion import assignment_of, plan_of
from evener.cost_model.prediction import Prediction, busy_seconds, predict
from evener.errors import PlanError
from evener.notebook import ShownAsText
from evener.plan.names import HOST
from evener.plan.parts import Predicted
from evener.plan.plan import Plan
from evener.planner.alternatives import describe, lacks, rejected
from evener.planner.groupings import MOST_FOR_ALL, kind_of
from evener.planner.search import Candidate, Choices, SearchResult, search_plan
from evener.planner.ties import simplest_of_equal
from evener.profile import Cluster, CostProfile
from evener.units import format_bytes

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
    """Refuse an impossible batch size.

    Args:
        batch_size: Value to check.
        words: Whether ``"max"`` and ``"auto"`` are allowed.

    Raises:
        PlanError: PLAN-042.
    """
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
