"""Trial of plans in the first steps of a run: which plan trains the next step, and which stays.

A pure state machine without a clock: it is told the seconds of each step.

::

    first plan ...      | plan 0   plan 1   plan 2 | plan 2   plan 1   plan 0 | plan 0 ...   | kept
    until the run has   | warm-up, then `BLOCK` timed steps of each,          |              |
    lasted as long as   | in `ROUNDS` rounds, every second one backwards      |              |
    a change of plans   |

A change of plans takes about as long as the first step, in which the step is traced. A run that
ends before it has trained for that long changes nothing; any other spends on changes no more than
a few times what it has trained. Source: A. R. Karlin, M. S. Manasse, L. Rudolph, D. D. Sleator,
Competitive Snoopy Caching, 1988, section 1 (rent until the rent has cost the price).

Rounds take turns, so that a machine that becomes slower does not decide. Plans are ordered from the
simplest to the least simple, and a plan displaces a simpler one only if it is faster beyond the
spread of the times.
"""

from __future__ import annotations

import statistics
from collections import deque

from evener.feedback.speeds import MeasuredSpeed, measured_speed

BLOCK = 4
"""Timed steps of a plan in a round."""
ROUNDS = 3
"""Rounds of a trial."""
LEAST_GAIN = 0.03
"""Fraction of the step time that a less simple plan has to save."""

_FIRST_WARM_UP, _WARM_UP = 2, 1
_STANDARD_ERRORS = 2.0
_TOO_SLOW = 1.5
"""A plan whose fastest step takes so many times the median of another is not tried again."""


class PlanTrial:
    """Trial of plans, numbered from the simplest to the least simple.

    Args:
        num_plans: Number of plans, at least 1.
        start: Plan that the run begins with.

    Attributes:
        start: Plan that the run begins with, which is known to work.
        current: Plan of the next step.
        is_over: Whether the current plan stays.
    """

    def __init__(self, num_plans: int, *, start: int) -> None:
        self.current = start
        self.is_over = num_plans < 2
        self.start = start
        self._plans = [*range(num_plans)]
        self._change_seconds: float | None = None
        self._spent: list[float] = []
        self._waiting: deque[int] = deque()
        self._to_skip = self._to_time = 0
        self._num_done = [0] * num_plans
        self._seconds: list[list[float]] = [[] for _ in range(num_plans)]

    @property
    def is_unproven(self) -> bool:
        """Whether the next step may fail where another plan has worked."""
        return self.current != self.start and self._num_done[self.current] < _FIRST_WARM_UP

    def median_seconds(self, plan: int) -> float | None:
        """Return the median of the timed steps of a plan, or None if it has none."""
        return statistics.median(self._seconds[plan]) if self._seconds[plan] else None

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
        elif not self._waiting and not self._to_time:
            self._spent.append(seconds)
            if len(self._spent) >= BLOCK and sum(self._spent) >= self._change_seconds:
                self._begin()
        elif self._to_skip:
            self._to_skip -= 1
        else:
            self._seconds[self.current].append(seconds)
            self._to_time -= 1
            if not self._to_time:
                self._drop_slow_plans()
                self._continue()

    def fail(self) -> None:
        """Leave the current plan, which did not work; the plan of the start is the next."""
        self._drop(self.current)
        self._to_time = 0
        self.current = self.start
        self._continue()

    def stop(self) -> None:
        """End the trial with the plan of the start."""
        self.current, self.is_over = self.start, True

    def _begin(self) -> None:
        others = [plan for plan in self._plans if plan != self.start]
        forward = [*others, self.start]
        for number in range(ROUNDS):
            order = forward if number % 2 == 0 else forward[::-1]
            self._waiting += order
        self._continue()

    def _continue(self) -> None:
        """Turn to the next block; the trial is over if there is none."""
        if not self._waiting or len(self._plans) < 2:
            self.current, self.is_over = self._fastest(), True
            return
        plan = self._waiting.popleft()
        is_new = self._num_done[plan] < _FIRST_WARM_UP
        self._to_skip = _FIRST_WARM_UP if is_new else _WARM_UP
        self._to_time = BLOCK
        self.current = plan

    def _drop(self, plan: int) -> None:
        self._plans.remove(plan)
        self._waiting = deque(waiting for waiting in self._waiting if waiting != plan)

    def _drop_slow_plans(self) -> None:
        """Drop plans that are far too slow, so that a trial costs little."""
        medians = [m for m in map(self.median_seconds, self._plans) if m is not None]
        for plan in tuple(self._plans):
            seconds = self._seconds[plan]
            if seconds and min(seconds) > _TOO_SLOW * min(medians):
                self._drop(plan)

    def _fastest(self) -> int:
        """Return the simplest plan that no less simple plan surely beats."""
        timed = [plan for plan in self._plans if self._seconds[plan]]
        if not timed:
            return self.start
        best, *others = timed
        for plan in others:
            if self._is_surely_faster(plan, best):
                best = plan
        return best

    def _is_surely_faster(self, plan: int, simpler: int) -> bool:
        """Whether a plan is faster in every round, and in the median beyond the spread."""
        found, other = self._seconds[plan], self._seconds[simpler]
        if statistics.median(found) > (1 - LEAST_GAIN) * statistics.median(other):
            return False
        rounds = zip(_blocks(found), _blocks(other), strict=False)
        if any(statistics.median(mine) >= statistics.median(its) for mine, its in rounds):
            return False
        fast, slow = _speed(found), _speed(other)
        least = fast.median * (1 - _STANDARD_ERRORS * fast.relative_error)
        return least > slow.median * (1 + _STANDARD_ERRORS * slow.relative_error)


def _blocks(seconds: list[float]) -> list[list[float]]:
    return [seconds[begin : begin + BLOCK] for begin in range(0, len(seconds), BLOCK)]


def _speed(seconds: list[float]) -> MeasuredSpeed:
    found = measured_speed([(1.0, step) for step in seconds])
    return found or MeasuredSpeed(median=0.0, relative_error=0.0)
