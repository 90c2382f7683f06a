"""Trial of plans in the first steps of a run: which plan trains the next step, and which stays.

A pure state machine without a clock: it is told the seconds of each step.

::

    first plan ...      | plan 0   plan 1   plan 2 | plan 2   plan 1   plan 0 | plan 0 ...   | kept
    until the run has   | warm-up, then a block of timed steps of each,       |              |
    lasted as long as   | in `ROUNDS` rounds, every second one backwards      |              |
    a change of plans   |

A change of plans takes about as long as the first step, in which the step is traced. A run that
ends before it has trained for that long changes nothing; any other spends on changes no more than
a few times what it has trained. Source: A. R. Karlin, M. S. Manasse, L. Rudolph, D. D. Sleator,
Competitive Snoopy Caching, 1988, section 1 (rent until the rent has cost the price).

Rounds take turns, so that a machine that becomes slower does not decide. Plans are ordered from the
simplest to the least simple, and a plan displaces a simpler one only if it is faster beyond the
spread of the times. Where one looks faster and the spread leaves it open, more rounds follow, up to
`MOST_ROUNDS`, of these two alone.
"""

from __future__ import annotations

import statistics
from collections import deque

from evener.feedback.speeds import MeasuredSpeed, measured_speed

BLOCK = 4
"""Least number of timed steps of a plan in a round."""
BLOCK_SECONDS = 0.2
"""Least seconds of these steps: a few steps of milliseconds tell more of the moment."""
ROUNDS, MOST_ROUNDS = 3, 8
"""Rounds of a trial, and of one whose times leave it open."""
LEAST_GAIN = 0.03
"""Fraction of the step time that a less simple plan has to save."""

_FIRST_WARM_UP, _WARM_UP = 2, 1
_STANDARD_ERRORS = 2.0
_TOO_SLOW, _FAR_TOO_SLOW = 1.5, 3.0
"""A plan whose fastest step takes so many times the median of another is not tried again: after two
rounds, and after the first one, in which the machine may have been slow."""


class PlanTrial:
    """Trial of plans, numbered from the simplest to the least simple.

    Args:
        num_plans: Number of plans, at least 1.
        start: Plan that the run begins with.

    Attributes:
        num_plans: Number of plans.
        start: Plan that the run begins with, which is known to work.
        current: Plan of the next step.
        is_over: Whether the current plan stays.
    """

    def __init__(self, num_plans: int, *, start: int) -> None:
        self.current = start
        self.is_over = num_plans < 2
        self.start = start
        self.num_plans = num_plans
        self._plans = [*range(num_plans)]
        self._change_seconds: float | None = None
        self._spent: list[float] = []
        self._waiting: deque[int] = deque()
        self._to_skip = 0
        self._is_timing = False
        self._num_done = [0] * num_plans
        # By plan: its timed steps in each round.
        self._blocks: list[list[list[float]]] = [[] for _ in range(num_plans)]

    @property
    def is_unproven(self) -> bool:
        """Whether the next step may fail where another plan has worked."""
        return self.current != self.start and self._num_done[self.current] < _FIRST_WARM_UP

    def median_seconds(self, plan: int) -> float | None:
        """Return the median of the timed steps of a plan, or None if it has none."""
        seconds = self._seconds(plan)
        return statistics.median(seconds) if seconds else None

    def record(self, seconds: float) -> None:
        """Enter a step of the current plan, and choose the plan of the next.

        Args:
            seconds: Time of the step, 0 or more.
        """
        if self.is_over:
            return
        self._num_done[self.current] += 1
        if self._change_seconds is None:
            self._change_seconds = seconds
        elif not self._is_timing:
            self._spent.append(seconds)
            if len(self._spent) >= BLOCK and sum(self._spent) >= self._change_seconds:
                self._begin()
        elif self._to_skip:
            self._to_skip -= 1
        else:
            block = self._blocks[self.current][-1]
            block.append(seconds)
            if len(block) >= BLOCK and sum(block) >= BLOCK_SECONDS:
                self._drop_slow_plans()
                self._continue()

    def fail(self) -> None:
        """Leave the current plan, which did not work; the plan of the start is the next."""
        self._drop(self.current)
        self.current = self.start
        self._continue()

    def stop(self) -> None:
        """End the trial with the plan of the start."""
        self.current, self.is_over = self.start, True

    def _seconds(self, plan: int) -> list[float]:
        return [seconds for block in self._blocks[plan] for seconds in block]

    def _begin(self) -> None:
        others = [plan for plan in self._plans if plan != self.start]
        forward = [*others, self.start]
        for number in range(ROUNDS):
            order = forward if number % 2 == 0 else forward[::-1]
            self._waiting += order
        self._continue()

    def _continue(self) -> None:
        """Turn to the next block; the trial is over if there is none."""
        if not self._waiting and len(self._plans) > 1:
            self._waiting += self._undecided()
        if not self._waiting or len(self._plans) < 2:
            self.current, self.is_over = self._fastest(), True
            return
        plan = self._waiting.popleft()
        is_new = self._num_done[plan] < _FIRST_WARM_UP
        self._to_skip = _FIRST_WARM_UP if is_new else _WARM_UP
        self._is_timing = True
        self._blocks[plan].append([])
        self.current = plan

    def _undecided(self) -> list[int]:
        """Return two plans for another round, if one looks faster than the simpler one that stays.

        The order is that of the turns: the plan that ran last begins.
        """
        best = self._fastest()
        for plan in self._timed():
            num_rounds = min(len(self._blocks[plan]), len(self._blocks[best]))
            if num_rounds < MOST_ROUNDS and self._looks_faster(plan, best):
                return [best, plan] if self.current == best else [plan, best]
        return []

    def _drop(self, plan: int) -> None:
        self._plans.remove(plan)
        self._waiting = deque(waiting for waiting in self._waiting if waiting != plan)

    def _drop_slow_plans(self) -> None:
        """Drop plans that are far too slow, so that a trial costs little."""
        medians = [m for m in map(self.median_seconds, self._plans) if m is not None]
        for plan in tuple(self._plans):
            seconds = self._seconds(plan)
            factor = _TOO_SLOW if len(self._blocks[plan]) > 1 else _FAR_TOO_SLOW
            if seconds and min(seconds) > factor * min(medians):
                self._drop(plan)

    def _timed(self) -> list[int]:
        return [plan for plan in self._plans if self._seconds(plan)]

    def _fastest(self) -> int:
        """Return the simplest plan that no less simple plan surely beats."""
        timed = self._timed()
        if not timed:
            return self.start
        best, *others = timed
        for plan in others:
            if self._is_surely_faster(plan, best):
                best = plan
        return best

    def _looks_faster(self, plan: int, simpler: int) -> bool:
        found, other = self._seconds(plan), self._seconds(simpler)
        gain = (1 - LEAST_GAIN) * statistics.median(other)
        return plan > simpler and statistics.median(found) <= gain

    def _is_surely_faster(self, plan: int, simpler: int) -> bool:
        """Whether a plan is faster in three of four rounds, and in the median beyond the spread."""
        if not self._looks_faster(plan, simpler):
            return False
        medians = (
            [*map(statistics.median, filter(None, self._blocks[k]))] for k in (plan, simpler)
        )
        lost = [mine >= its for mine, its in zip(*medians, strict=False)]
        if sum(lost) > len(lost) // 4:
            return False
        fast, slow = _speed(self._seconds(plan)), _speed(self._seconds(simpler))
        least = fast.median * (1 - _STANDARD_ERRORS * fast.relative_error)
        return least > slow.median * (1 + _STANDARD_ERRORS * slow.relative_error)


def _speed(seconds: list[float]) -> MeasuredSpeed:
    found = measured_speed([(1.0, step) for step in seconds])
    return found or MeasuredSpeed(median=0.0, relative_error=0.0)
