"""Feedback of measured times while a run goes on: new shares, the faster of two plans, data waits.

All of it is pure: nothing here has a clock of its own or imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from evener.base.text import format_seconds
from evener.errors import PlanError
from evener.plan.parts import to_tuple
from evener.plan.plan import check_shares

T = TypeVar("T")

Window = Sequence[Sequence[tuple[float, float]]]
"""Pairs (samples, seconds) of the last steps, for each replica in order."""

_STANDARD_ERRORS = 2.0
"""Number of standard errors by which a speed may be better or worse than measured."""

_LEAST_OF_PREDICTION = 0.25
"""Part of the predicted improvement that the next window has to show."""

_LEAST_PATIENCE, _MOST_PATIENCE = 2, 32
"""Windows in a row that have to propose a change, at first and at most."""

_LEAST_CONFIDENCE = 0.5
"""Part of a predicted improvement that is expected after many changes that were wrong."""

_LEAST_RATIO = 1e-250
"""Lower bound of the ratio of two usable speeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTrial:
    before: tuple[float, ...]  # Fractions before the change.
    speed: MeasuredSpeed  # Samples of whole steps per second before the change.
    improvement: float  # Predicted fraction of the step time that is saved.


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRebalancer:
    """State of rebalancing between two windows.

    Args:
        shares: Current shares, one per replica; they are stored as fractions that add up to 1.
        speeds: Last measured speed of each replica in samples per second; None if it was not
            measured yet. Rebalancing starts when every replica has been measured.
        threshold: Least improvement of the predicted step time for a change, a fraction from 0 to
            1. At least two consecutive windows must show it.
        minimum_share: Least fraction of a replica, so that it is still measured; at most
            1 / number of replicas. With 1 / batch size or more, every replica gets a sample of
            every batch.
        maximum_shares: Largest fraction of each replica, 0 or more, such as its memory allows;
            empty for no limit.
        doubted: Speeds of the last window if they propose a change that waits for further windows;
            otherwise None. Set by `rebalance_shares`.
        num_doubtful: Last windows in a row that propose a change. Set by `rebalance_shares`.
        trial: Last change, if no window was measured since. Set by `rebalance_shares`.
        patience: Windows in a row that have to propose the next change. Set by `rebalance_shares`.
        confidence: Part of a predicted improvement that is expected, as learned from the last
            changes; from 0.5 to 1. Set by `rebalance_shares`.

    Raises:
        PlanError: PLAN-007 to PLAN-011 for wrong shares, PLAN-032 for wrong settings or
            speeds.
    """

    shares: tuple[float, ...]
    speeds: tuple[float | None, ...] = ()
    threshold: float = 0.05
    minimum_share: float = 0.01
    maximum_shares: tuple[float, ...] = ()
    doubted: tuple[float, ...] | None = None
    num_doubtful: int = 0
    trial: ShareTrial | None = None
    patience: int = _LEAST_PATIENCE
    confidence: float = 1.0

    def __post_init__(self) -> None:
        shares = check_shares(self.shares)
        total, num_replicas = math.fsum(shares), len(shares)
        # Keep fractions unchanged: a copied state must not drift.
        if abs(total - 1.0) >= 1e-12:
            shares = tuple(share / total for share in shares)
        object.__setattr__(self, "shares", shares)
        speeds = to_tuple(self.speeds) or (None,) * num_replicas
        object.__setattr__(self, "speeds", speeds)
        every = f"one for each of {num_replicas} replicas"
        for name, most in (("threshold", 1.0), ("minimum_share", 1.0 / num_replicas)):
            value = getattr(self, name)
            if not 0.0 <= value <= most:
                raise _wrong_setting(name, value, f"from 0 to {most:g}", f"{name}={most:g}")
        for number, speed in enumerate(speeds):
            if speed is not None and not is_usable(speed):
                path = f"speeds[{number}]"
                raise _wrong_setting(path, speed, "finite and above 0", f"None for {path}")
        for number, most in enumerate(self.maximum_shares):
            if not most >= 0:
                path = f"maximum_shares[{number}]"
                raise _wrong_setting(path, most, "0 or more", "1.0 for no limit")
        if self.maximum_shares and len(self.maximum_shares) != num_replicas:
            raise _wrong_setting("maximum_shares", self.maximum_shares, f"{every}, or none", "()")
        if len(speeds) != num_replicas:
            raise _wrong_setting("speeds", speeds, every, f"speeds={(None,) * num_replicas}")


def _wrong_setting(name: str, value: object, right: str, remedy: str) -> PlanError:
    return PlanError(
        "PLAN-032",
        f"{name} of the ShareRebalancer is {value}.",
        why=f"it must be {right}.",
        fix=f"write {remedy}, or leave it out.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalanced:
    """Event of a change of shares.

    Args:
        step: Training step after which the shares changed.
        before: Fractions before the change.
        after: Fractions after the change.
        speeds: Speed of each replica in samples per second.
        improvement: Predicted fraction of the step time that is saved, 0 to 1; of a change that is
            taken back, the measured fraction that it has cost.
    """

    step: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    speeds: tuple[float, ...]
    improvement: float

    def __str__(self) -> str:
        """Return one line for the log.

        >>> print(Rebalanced(step=40, before=(0.5, 0.5), after=(0.8, 0.2), speeds=(400.0, 100.0),
        ...              improvement=0.6))
        step 40: shares 50 : 50 -> 80 : 20 %, 60 % less time a step expected
        """
        before, after = (
            " : ".join(f"{100 * share:.3g}" for share in shares)
            for shares in (self.before, self.after)
        )
        return (
            f"step {self.step}: shares {before} -> {after} %, "
            f"{100 * self.improvement:.0f} % less time a step expected"
        )


def describe_changes(num_changes: int, step: int, shares: Sequence[float]) -> str:
    """Return one line about the changes of a run, of which the last one is given.

    >>> describe_changes(3, 120, (0.62, 0.38))
    'shares changed 3 times; settled at 62:38 after 120 steps'
    """
    times = "once" if num_changes == 1 else f"{num_changes} times"
    settled = ":".join(f"{100 * share:.0f}" for share in shares)
    return f"shares changed {times}; settled at {settled} after {step} steps"


def rebalance_shares(
    rebalancer: ShareRebalancer, window: Window, *, step: int
) -> tuple[ShareRebalancer, Rebalanced | None]:
    """Rebalance the shares by the measurements of one window.

    ::

        window            speeds                  shares
        (samples, s) -->  median of       -->     proportional to speed  -->  worth it, in as many
        per replica       samples / s             at least minimum_share      windows as it takes?

        changed  -->  next window: faster than the spread, and by a quarter of the prediction?
                      yes: keep; half the patience      no: take back; twice the patience

    The speed of a replica is the median of samples / seconds over the window, so single outliers do
    not count. Steps with 0 samples, and times that are not positive and finite, are ignored; a
    replica without a measurement keeps its last speed.

    A change waits for further windows, at first for one. In each it must be worth it twice: with
    the shares that follow from that window, and with those that follow from the one before, both
    judged at the speeds of that window. Steps that scatter make it harder: the speeds that the
    present shares are judged by are raised by two standard errors first, so that a window of noise
    changes nothing.

    A change is an experiment: the next window keeps it or takes it back. After each one that is
    taken back twice as many windows in a row have to propose the next one, up to 32, and half as
    many after each one that is kept. The gain seen, as a part of the gain predicted, is averaged
    into the confidence, by which later predictions are multiplied.

    Args:
        rebalancer: Current state.
        window: Pairs (samples, seconds) of the last steps of each replica. Ten or more make the
            median and its error robust; a single step has no error estimate.
        step: Number of the training step, for the event.

    Returns:
        The next state, and the event if the shares changed.

    Raises:
        PlanError: PLAN-033 if the window has another number of replicas.

    >>> rebalancer, window = ShareRebalancer(shares=(1, 1)), [[(32, 0.08)], [(32, 0.32)]]
    >>> rebalancer, _ = rebalance_shares(rebalancer, window, step=32)
    >>> rebalancer, event = rebalance_shares(rebalancer, window, step=40)
    >>> [round(share, 6) for share in rebalancer.shares]
    [0.8, 0.2]
    >>> print(event)
    step 40: shares 50 : 50 -> 80 : 20 %, 60 % less time a step expected
    """
    if len(window) != len(rebalancer.shares):
        raise PlanError(
            "PLAN-033",
            f"The window measures {len(window)} replicas; there are {len(rebalancer.shares)}.",
            why="the window needs one list of (samples, seconds) per replica; a list may be empty.",
            fix="for two replicas of which one was idle: [[(32, 0.1)], []].",
        )
    measured = [measured_speed(steps) for steps in window]
    latest = tuple(
        last if new is None else new.median
        for new, last in zip(measured, rebalancer.speeds, strict=True)
    )
    speeds = tuple(speed for speed in latest if speed is not None)
    if len(speeds) < len(latest):
        return dataclasses.replace(rebalancer, speeds=latest), None
    trial, before = rebalancer.trial, rebalancer.shares
    rebalancer = dataclasses.replace(rebalancer, speeds=latest, trial=None)

    def bounded(proportions: Sequence[float]) -> tuple[float, ...]:
        return ideal_shares(
            proportions,
            minimum_share=rebalancer.minimum_share,
            maximum_shares=rebalancer.maximum_shares,
        )

    # The speed of whole steps, each as long as its slowest replica; None if unknown.
    whole = None
    if len({len(steps) for steps in window}) == 1:
        whole = measured_speed(
            [
                (math.fsum(samples for samples, _ in steps), max(seconds for _, seconds in steps))
                for steps in zip(*window, strict=True)
            ]
        )

    def changed(
        after: tuple[float, ...], improvement: float, trial: ShareTrial | None = None
    ) -> tuple[ShareRebalancer, Rebalanced]:
        state = dataclasses.replace(
            rebalancer, shares=after, doubted=None, num_doubtful=0, trial=trial
        )
        return state, Rebalanced(
            step=step, before=before, after=after, speeds=speeds, improvement=improvement
        )

    if trial is not None and whole is not None:
        gain = 1.0 - trial.speed.median / whole.median
        spread = math.hypot(trial.speed.relative_error, whole.relative_error)
        is_faster = gain >= max(_LEAST_OF_PREDICTION * trial.improvement, spread)
        patience = rebalancer.patience // 2 if is_faster else 2 * rebalancer.patience
        seen = min(1.0, max(0.0, gain / trial.improvement))
        rebalancer = dataclasses.replace(
            rebalancer,
            patience=min(max(patience, _LEAST_PATIENCE), _MOST_PATIENCE),
            confidence=max(_LEAST_CONFIDENCE, (rebalancer.confidence + seen) / 2),
        )
        if not is_faster:
            lost = max(0.0, 1.0 - whole.median / trial.speed.median)
            return changed(bounded(trial.before), lost)

    # The present shares may be faster than measured.
    errors = [0.0 if new is None else new.relative_error for new in measured]
    best_speeds = [
        speed * (1 + _STANDARD_ERRORS * error) for speed, error in zip(speeds, errors, strict=True)
    ]

    def sure_improvement(after: Sequence[float]) -> float:
        saved = 1.0 - seconds_per_sample(after, speeds) / seconds_per_sample(before, best_speeds)
        return rebalancer.confidence * saved

    ideal = bounded(speeds)
    improvement = sure_improvement(ideal)
    if improvement < rebalancer.threshold or improvement <= 0:
        return dataclasses.replace(rebalancer, doubted=None, num_doubtful=0), None
    doubted, num_doubtful = rebalancer.doubted, rebalancer.num_doubtful + 1
    if doubted is None or sure_improvement(bounded(doubted)) < rebalancer.threshold:
        num_doubtful = 1
    if num_doubtful < rebalancer.patience:
        return dataclasses.replace(rebalancer, doubted=speeds, num_doubtful=num_doubtful), None
    expected = 1.0 - seconds_per_sample(ideal, speeds) / seconds_per_sample(before, speeds)
    begun = whole and ShareTrial(before=before, speed=whole, improvement=expected)
    return changed(ideal, expected, begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    median: float  # Median of samples / seconds.
    # Standard error of the median as a fraction of it; 0 for a single step.
    relative_error: float


def measured_speed(steps: Sequence[tuple[float, float]]) -> MeasuredSpeed | None:
    """Return the speed of a replica over a window, or None if nothing usable was measured.

    The error is based on the median absolute deviation (MAD), which is robust to outliers: 1.4826
    MAD estimates the standard deviation, and the error of a median is 1.2533 standard deviations
    divided by the square root of the number of steps.

    Source: P. J. Rousseeuw, C. Croux, "Alternatives to the Median Absolute Deviation", 1993,
    section 1. Ours: the factor 1 + 1.5 / n, as the MAD of few steps is too small.

    >>> measured_speed([(10, 1.0), (10, 1.0), (10, 1.0), (10, 50.0)])
    MeasuredSpeed(median=10.0, relative_error=0.0)
    """
    speeds = [samples / seconds for samples, seconds in steps if samples > 0 and seconds > 0]
    usable = [speed for speed in speeds if is_usable(speed)]
    if not usable:
        return None
    median, num_steps = statistics.median(usable), len(usable)
    deviation = 1.4826 * statistics.median(abs(speed - median) for speed in usable)
    error = 1.2533 * deviation * (1 + 1.5 / num_steps) / math.sqrt(num_steps)
    return MeasuredSpeed(median=median, relative_error=error / median)


def is_usable(speed: float) -> bool:
    """Whether shares can be divided by a speed; False for NaN."""
    return 1e-100 <= speed <= 1e100


def ideal_shares(
    speeds: Sequence[float], *, minimum_share: float = 0.0, maximum_shares: Sequence[float] = ()
) -> tuple[float, ...]:
    """Return fractions proportional to speed, or to other shares, within bounds.

    Replicas that would fall below the minimum get the minimum, those that would exceed their
    maximum get the maximum, and the others share the rest by speed. A lower maximum takes
    precedence over the minimum; maxima that add up to less than 1 are the proportions. A share of 0
    gets the excess of all others.

    >>> ideal_shares([300, 100])
    (0.75, 0.25)
    >>> ideal_shares([100, 100, 100], maximum_shares=[1, 0.2, 1])
    (0.4, 0.2, 0.4)
    """
    most = tuple(maximum_shares) or (1.0,) * len(speeds)
    if math.fsum(most) <= 1.0:
        total = math.fsum(most)
        return tuple(part / total for part in most) if total else ideal_shares(speeds)
    fastest = max(speeds)
    relative = [max(speed / fastest, _LEAST_RATIO) for speed in speeds]
    lows = [min(minimum_share, high) for high in most]
    bounded: dict[int, float] = {}
    while True:
        rest = 1.0 - math.fsum(bounded.values())
        total = math.fsum(part for index, part in enumerate(relative) if index not in bounded)
        shares = [bounded.get(k, rest * part / total) for k, part in enumerate(relative)]
        below = {k: low - shares[k] for k, low in enumerate(lows) if shares[k] < low}
        above = {k: shares[k] - high for k, high in enumerate(most) if shares[k] > high}
        # Fix the bounds of the side with the larger total violation, and repeat.
        if math.fsum(above.values()) >= math.fsum(below.values()):
            outside = {k: most[k] for k in above if k not in bounded}
        else:
            outside = {k: lows[k] for k in below if k not in bounded}
        if not outside or len(bounded) + len(outside) == len(shares):
            return tuple(shares)
        bounded |= outside


def seconds_per_sample(shares: Sequence[float], speeds: Sequence[float]) -> float:
    """Return the predicted time of a step per sample of the batch: that of the slowest replica."""
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))


BLOCK = 4
"""Least number of timed steps of a plan in a round."""

BLOCK_SECONDS = 0.2
"""Least seconds of these steps: a few steps of milliseconds tell more of the moment."""

ROUNDS, MOST_ROUNDS = 3, 8
"""Rounds of a trial, and of one whose times leave it open."""

LEAST_GAIN = 0.03
"""Fraction of the step time that a less simple plan has to save."""

_FIRST_WARM_UP, _WARM_UP = 2, 1

_TOO_SLOW, _FAR_TOO_SLOW = 1.5, 3.0
"""A plan whose fastest step takes so many times the median of another is not tried again: after two
rounds, and after the first one, in which the machine may have been slow."""


class PlanTrial:
    """Trial of plans in the first steps of a run: which trains the next step, and which stays.

    ::

        first plan ...     | plan 0   plan 1   plan 2 | plan 2   plan 1   plan 0 | plan 0 ...
        until the run has  | warm-up, then a block of timed steps of each,       | is kept
        lasted as long as  | in `ROUNDS` rounds, every second one backwards      |
        a change of plans  |

    A change of plans takes about as long as the first step, in which the step is traced. A run that
    ends before it has trained for that long changes nothing; any other spends on changes no more
    than a few times what it has trained. Source: A. R. Karlin, M. S. Manasse, L. Rudolph, D. D.
    Sleator, Competitive Snoopy Caching, 1988, section 1 (rent until the rent has cost the price).

    Rounds take turns, so that a machine that becomes slower does not decide. Plans are numbered
    from the simplest to the least simple, and a plan displaces a simpler one only if it is faster
    beyond the spread of the times. Where one looks faster and the spread leaves it open, more
    rounds follow, up to `MOST_ROUNDS`, of these two alone.
    """

    def __init__(self, num_plans: int, *, start: int) -> None:
        self.current = start  # Plan of the next step
        self.is_over = num_plans < 2  # Whether the current plan stays
        self.start = start  # It is known to work.
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
        seconds = self._seconds(plan)
        return statistics.median(seconds) if seconds else None

    def record(self, seconds: float) -> None:
        """Enter the seconds of a step of the current plan, and choose the plan of the next."""
        if self.is_over:
            return
        self._num_done[self.current] += 1
        if self._change_seconds is None:
            self._change_seconds = seconds
        elif not self._is_timing:
            self._spent.append(seconds)
            if len(self._spent) >= BLOCK and sum(self._spent) >= self._change_seconds:
                others = [plan for plan in self._plans if plan != self.start]
                forward = [*others, self.start]
                for number in range(ROUNDS):
                    self._waiting += forward if number % 2 == 0 else forward[::-1]
                self._continue()
        elif self._to_skip:
            self._to_skip -= 1
        else:
            block = self._blocks[self.current][-1]
            block.append(seconds)
            if len(block) >= BLOCK and sum(block) >= BLOCK_SECONDS:
                # Plans that are far too slow are dropped, so that a trial costs little.
                medians = [m for m in map(self.median_seconds, self._plans) if m is not None]
                for plan in tuple(self._plans):
                    timed = self._seconds(plan)
                    factor = _TOO_SLOW if len(self._blocks[plan]) > 1 else _FAR_TOO_SLOW
                    if timed and min(timed) > factor * min(medians):
                        self._drop(plan)
                self._continue()

    def fail(self) -> None:
        """Leave the current plan, which did not work; the plan of the start is the next."""
        self._drop(self.current)
        self.current = self.start
        self._continue()

    def stop(self) -> None:
        self.current, self.is_over = self.start, True

    def _seconds(self, plan: int) -> list[float]:
        return [seconds for block in self._blocks[plan] for seconds in block]

    def _drop(self, plan: int) -> None:
        self._plans.remove(plan)
        self._waiting = deque(waiting for waiting in self._waiting if waiting != plan)

    def _continue(self) -> None:
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
        """Return two plans for another round, the last one first, if the spread leaves it open."""
        best = self._fastest()
        for plan in self._plans:
            num_rounds = min(len(self._blocks[plan]), len(self._blocks[best]))
            is_open = self._seconds(plan) and num_rounds < MOST_ROUNDS
            if is_open and self._looks_faster(plan, best):
                return [best, plan] if self.current == best else [plan, best]
        return []

    def _fastest(self) -> int:
        """Return the simplest plan that no less simple plan surely beats."""
        timed = [plan for plan in self._plans if self._seconds(plan)]
        best = timed[0] if timed else self.start
        for plan in timed[1:]:
            if self._is_surely_faster(plan, best):
                best = plan
        return best

    def _looks_faster(self, plan: int, simpler: int) -> bool:
        gain = (1 - LEAST_GAIN) * statistics.median(self._seconds(simpler))
        return plan > simpler and statistics.median(self._seconds(plan)) <= gain

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
        none = MeasuredSpeed(median=0.0, relative_error=0.0)
        fast, slow = (
            measured_speed([(1.0, step) for step in self._seconds(k)]) or none
            for k in (plan, simpler)
        )
        least = fast.median * (1 - _STANDARD_ERRORS * fast.relative_error)
        return least > slow.median * (1 + _STANDARD_ERRORS * slow.relative_error)


NUM_STEPS = 50

LEAST_PART, LEAST_SECONDS = 0.2, 1.0
"""Least part of the time, and least seconds of waiting, that are reported."""


class DataWait:
    """Time that a worker waits for data; reported once, if it is much of `NUM_STEPS` steps."""

    def __init__(
        self,
        report: Callable[[str], object],
        explain: Callable[[], str],
        *,
        num_steps: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._report, self._explain, self._clock = report, explain, clock
        self._count = num_steps or itertools.count().__next__
        self._count_before = -1
        self._is_reported = self._is_taking = False
        self._last: float | None = None
        self._num_steps = 0
        self._waited = self._total = 0.0

    def take(self, read: Callable[[], Sequence[T]]) -> Sequence[T]:
        """Take the next batches; those that begin an epoch, and fill buffers, do not count."""
        if self._is_taking:
            return read()
        self._is_taking = True
        began = self._clock()
        try:
            batches = read()
        finally:
            self._is_taking = False
        ended, count = self._clock(), self._count()
        if self._last is not None and batches and count != self._count_before:
            self._num_steps += 1
            self._waited += ended - began
            self._total += ended - self._last
            if self._num_steps == NUM_STEPS:
                is_large = self._waited >= max(LEAST_SECONDS, LEAST_PART * self._total)
                if is_large and not self._is_reported:
                    self._is_reported = True
                    self._report(
                        f"this worker waited for its data {format_seconds(self._waited)} of the "
                        f"{format_seconds(self._total)} of {NUM_STEPS} steps: {self._explain()}; "
                        "cache or prefetch the data, or map it in parallel"
                    )
                self._num_steps, self._waited, self._total = 0, 0.0, 0.0
        self._count_before = count
        self._last = ended if batches else None
        return batches
