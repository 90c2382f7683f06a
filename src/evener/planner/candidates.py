"""Candidate plans, and the evaluator that ranks them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import HOST_OWNER, Assignment, ReplicaAssignment
from evener.cost_model.memory import shortages
from evener.cost_model.ownership import spread_owners
from evener.cost_model.prediction import Prediction, predict
from evener.plan.parts import ScheduleName
from evener.planner.groupings import Grouping, is_over_machines
from evener.planner.polishing import polish
from evener.planner.recut import recut
from evener.profile import CostProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Choices that the search may make.

    Args:
        num_micro_batches: Numbers of micro-batches to try; for interleaved stages, these times the
            number of devices, up to the greatest.
        recompute: Whether activations may be recomputed.
        host: Whether the host may own variables; ignored if the CPU is one of the devices.
        schedules: Schedules of pipelines to try besides ``"1f1b"``, which is always tried.
        most_rounds: Most stages per device in an interleaved pipeline.
        simpler_within: Slowdown, as a fraction, accepted for a plan without one of micro-batches,
            recomputation, another schedule, one more stage per device, or owners other than the
            engine's. Measured times are not exact enough to distinguish such plans.
        noise: Fraction of the step time within which two plans count as equally fast: the simpler
            one is chosen, of one device, even shares, uneven shares and a pipeline.
    """

    num_micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    recompute: bool = True
    host: bool = True
    schedules: tuple[ScheduleName, ...] = ("zero_bubble",)
    most_rounds: int = 4
    simpler_within: float = 0.02
    noise: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Candidate plan of the search.

    Args:
        grouping: Devices of each replica.
        assignment: Layers that each device computes and owns.
        prediction: Predicted costs.
        shortages: Pairs of a device that lacks memory and the missing bytes.
    """

    grouping: Grouping
    assignment: Assignment
    prediction: Prediction
    shortages: tuple[tuple[int, int], ...]

    @property
    def fits(self) -> bool:
        """Whether every device has enough memory."""
        return not self.shortages


def num_rounds(replica: ReplicaAssignment) -> int:
    """Return the number of stages per device of a replica."""
    return len(replica.spans) // len(set(replica.devices))


def is_interleaved(replica: ReplicaAssignment) -> bool:
    """Whether a device has several stages of a replica."""
    return num_rounds(replica) > 1


class PlanEvaluator:
    """Evaluator of plans: predicts and ranks them.

    Args:
        profile: Costs of the layers on the devices.
        choices: Choices of the search; `Choices.simpler_within` weighs the simplicity of a plan.
    """

    def __init__(self, profile: CostProfile, choices: Choices) -> None:
        self.profile = profile
        self.choices = choices

    def predict(self, assignment: Assignment) -> Prediction:
        """Return the prediction of an assignment."""
        return predict(assignment, self.profile)

    def candidate(self, grouping: Grouping, assignment: Assignment) -> Candidate:
        """Return an assignment with its prediction, as a candidate."""
        prediction = self.predict(assignment)
        return Candidate(
            grouping=grouping,
            assignment=assignment,
            prediction=prediction,
            shortages=tuple(shortages(prediction.memory, self.profile.cluster)),
        )

    def rank(self, candidate: Candidate) -> tuple[float, int]:
        """Return the sort key of a candidate, lower for better ones: seconds, then devices."""
        num_devices = sum(map(len, candidate.grouping))
        return self.weighed(candidate.assignment, candidate.prediction), num_devices

    def seconds(self, assignment: Assignment) -> float:
        """Return the weighed seconds of a step, as in `rank`; infinite if it does not fit."""
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
            grouping: Devices of each replica.
            assignment: Start of the search.
            counts: Numbers of micro-batches to try.
            host: Whether the host may own variables.
            seconds: Function that returns the seconds of a step; None for the method of this name.
        """
        layers, cluster = self.profile.model.layers, self.profile.cluster
        spread = None
        if is_over_machines(grouping, cluster):
            spread = functools.partial(spread_owners, layers, cluster=cluster)
        recut_plan = functools.partial(recut, recompute=assignment.recompute, profile=self.profile)
        # The estimate of `recut` does not hold for interleaved stages.
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
        """Whether every device has enough memory."""
        return not any(shortages(prediction.memory, self.profile.cluster))

    def weighed(self, assignment: Assignment, prediction: Prediction) -> float:
        """Return the seconds of a step, plus a fraction for everything that is not simple."""
        layers, cluster = self.profile.model.layers, self.profile.cluster
        owners = spread_owners(layers, assignment.replicas, cluster)
        less_simple = [
            HOST_OWNER in assignment.owners,
            assignment.owners != owners,
            any(assignment.recompute),
            any(len(r.spans) == 1 and r.num_micro_batches > 1 for r in assignment.replicas),
            any(replica.schedule != "1f1b" for replica in assignment.replicas),
        ]
        # Every additional round adds calls for each micro-batch.
        num_more = sum(less_simple) + max(map(num_rounds, assignment.replicas)) - 1
        return prediction.step_seconds * (1 + self.choices.simpler_within * num_more)
