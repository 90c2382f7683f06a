"""Groups of devices with the same costs, and the best shapes of their replicas."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evener.planner.group_costs import Exchange, GroupCosts, Shape
from evener.planner.groupings import (
    Group,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKind:
    """Groups with the same costs, and the shapes that they may have.

    Args:
        groups: Groups of devices.
        options: Shapes, by ascending numbers of micro-batches.
        costs: Costs of groups.
        exchange: Exchange and update seconds of their weights.
        limited: Whether memory limits apply.
        owned: Bytes for owned variables; see `GroupCosts.most_samples`.
        is_alone: Whether one group computes everything.
    """

    groups: list[Group]
    options: list[Shape]
    costs: GroupCosts
    exchange: Exchange
    limited: bool
    owned: Mapping[int, float]
    is_alone: bool

    def limits(self, batch_size: int) -> list[int]:
        """Return for each shape the most samples that fit into memory."""
        if not self.limited:
            return [batch_size] * len(self.options)
        fullest = max(self.groups, key=lambda group: max(self.owned.get(d, 0.0) for d in group))
        return [
            self.costs.most_samples(fullest, shape, batch_size, self.owned, is_alone=self.is_alone)
            for shape in self.options
        ]

    def timed(self, limits: list[int]) -> Callable[[int], float]:
        """Return a function from samples to the seconds of the best shape that fits."""
        group = self.groups[0]
        return self._least(limits, lambda s, n: self.costs.seconds(group, s, n, self.exchange))

    def computing(self, limits: list[int]) -> Callable[[int], float]:
        """Return the same for the seconds without the exchange and update of weights."""
        group = self.groups[0]
        return self._least(limits, lambda s, n: self.costs.compute_seconds(group, s, n))

    def best(self, samples: int, limits: list[int], as_fast: float) -> Shape:
        """Return the shape with the fewest micro-batches that is as fast as the fastest."""
        fitting = [s for s, limit in zip(self.options, limits, strict=True) if samples <= limit]
        seconds = [
            self.costs.seconds(self.groups[0], shape, samples, self.exchange) for shape in fitting
        ]
        # The options are in ascending order of micro-batches.
        enough = min(seconds) * as_fast
        return next(s for s, took in zip(fitting, seconds, strict=True) if took <= enough)

    def _least(
        self, limits: list[int], seconds: Callable[[Shape, int], float]
    ) -> Callable[[int], float]:
        @functools.cache
        def least(samples: int) -> float:
            if samples == 0:
                return 0.0
            fitting = (
                shape for shape, limit in zip(self.options, limits, strict=True) if samples <= limit
            )
            return min((seconds(shape, samples) for shape in fitting), default=math.inf)

        return least
