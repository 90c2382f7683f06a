"""Plans that are considered, and which of two is better."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import (
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    spread_owners,
)
from evener.cost_model.memory import shortages
from evener.cost_model.prediction import Prediction, predict
from evener.plan.parts import ScheduleName
from evener.planner.groupings import Grouping, is_over_machines
from evener.planner.polishing import polish
from evener.planner.recut import recut
from evener.profile import CostProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the search may choose.

    Args:
        num_micro_batches: The numbers of micro-batches that are tried; of interleaved stages, these
            times the number of devices, up to the greatest.
        recompute: Whether activations may be computed again.
        host: Whether the host may own variables, beside devices that are not the host itself.
        schedules: The schedules of pipelines that are tried beside ``"1f1b"``, which always is.
        most_rounds: How many stages a device may have, if they go round all devices in turns.
        simpler_within: A plan that is slower by no more than this fraction is better if it does
            without one of micro-batches, recomputation, another schedule, one stage more on each
            device, or owners other than the engine's; measured times are not exact enough to tell
            it apart.
    """

    num_micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    recompute: bool = True
    host: bool = True
    schedules: tuple[ScheduleName, ...] = ("zero_bubble",)
    most_rounds: int = 4
    simpler_within: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that was considered.

    Args:
        grouping: The devices of each replica.
        assignment: What each computes and owns.
        prediction: What that costs.
        shortages: For each device that lacks memory the bytes that it lacks.
    """

    grouping: Grouping
    assignment: Assignment
    prediction: Prediction
    shortages: tuple[tuple[int, int], ...]

    @property
    def fits(self) -> bool:
        """Whether every device has the memory that it needs."""
        return not self.shortages


def num_rounds(replica: ReplicaAssignment) -> int:
    """Return how many stages of a replica its devices have, in turns."""
    return len(replica.spans) // len(set(replica.devices))


def is_interleaved(replica: ReplicaAssignment) -> bool:
    """Whether a device has several stages of a replica."""
    return num_rounds(replica) > 1


class PlanEvaluator:
    """Predicts plans, and says which of two is better.

    Args:
        profile: What layers and devices cost.
        choices: Say what makes a plan less simple, and how much that counts.
    """

    def __init__(self, profile: CostProfile, choices: Choices) -> None:
        self.profile = profile
        self.choices = choices

    def predict(self, assignment: Assignment) -> Prediction:
        """Return what an assignment costs."""
        return predict(assignment, self.profile)

    def candidate(self, grouping: Grouping, assignment: Assignment) -> Candidate:
        """Return an assignment with what it costs."""
        prediction = self.predict(assignment)
        return Candidate(
            grouping=grouping,
            assignment=assignment,
            prediction=prediction,
            shortages=tuple(shortages(prediction.memory, self.profile.cluster)),
        )

    def rank(self, candidate: Candidate) -> tuple[float, int]:
        """Return what is less for a better plan: of equal times, fewer devices."""
        num_devices = sum(map(len, candidate.grouping))
        return self.weighed(candidate.assignment, candidate.prediction), num_devices

    def seconds(self, assignment: Assignment) -> float:
        """Return the time of a step, as `rank` has it; infinite for what does not fit."""
        prediction = self.predict(assignment)
        return self.weighed(assignment, prediction) if self.fits(prediction) else math.inf

    def polished(
        self,
        grouping: Grouping,
        assignment: Assignment,
        counts: Sequence[int],
        *,
        host: bool,
        seconds: Callable[[Assignment], float] | None = None,
    ) -> Assignment:
        """Return an assignment that no small change makes faster.

        Args:
            grouping: The devices of each replica.
            assignment: To begin with.
            counts: The numbers of micro-batches that may be tried.
            host: Whether the host may own variables.
            seconds: The time of a step; by default the method of this name.
        """
        layers, cluster = self.profile.model.layers, self.profile.cluster
        spread = None
        if is_over_machines(grouping, cluster):
            spread = functools.partial(spread_owners, layers, cluster=cluster)
        recut_plan = functools.partial(recut, recompute=assignment.recompute, profile=self.profile)
        # The estimate of other cuts is not for stages that are interleaved.
        can_recut = not any(map(is_interleaved, assignment.replicas))
        return polish(
            assignment,
            seconds or self.seconds,
            counts,
            recut=functools.cache(recut_plan) if can_recut else lambda _: (),
            host=host,
            spread=spread,
        )

    def fits(self, prediction: Prediction) -> bool:
        """Whether every device has the memory that it needs."""
        return not any(shortages(prediction.memory, self.profile.cluster))

    def weighed(self, assignment: Assignment, prediction: Prediction) -> float:
        """Return the time of a step, and a little more for all that makes a plan less simple."""
        layers, cluster = self.profile.model.layers, self.profile.cluster
        owners = spread_owners(layers, assignment.replicas, cluster)
        less_simple = [
            HOST_OWNER in assignment.owners,
            assignment.owners != owners,
            any(assignment.recompute),
            any(len(one.spans) == 1 and one.num_micro_batches > 1 for one in assignment.replicas),
            any(one.schedule != "1f1b" for one in assignment.replicas),
        ]
        # Every round is more calls for each micro-batch.
        num_more = sum(less_simple) + max(map(num_rounds, assignment.replicas)) - 1
        return prediction.step_seconds * (1 + self.choices.simpler_within * num_more)
