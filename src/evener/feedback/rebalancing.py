"""Rebalance the shares of replicas while training, from the times of their steps.

A pure controller: a state and the measurements of one window go in, the next state and
perhaps an event come out. It has no clock and knows no TensorFlow.

::

    window            speeds                  shares
    (samples, s) -->  median of       -->     proportional to speed  -->  worth it?
    per replica       samples / s             at least minimum_share      >= 20 %: at once
                                                                          >=  5 %: if twice

What noise alone can explain is never worth a change: the improvement is judged after the
speeds have been given the benefit of two standard errors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from evener.errors import PlanError
from evener.feedback.speeds import ideal_shares, is_usable, measured_speed, seconds_per_sample
from evener.plan.parts import as_tuple
from evener.plan.shares import check_shares

# By so many standard errors a speed may be better than it was measured.
_STANDARD_ERRORS = 2.0

Window = Sequence[Sequence[tuple[float, float]]]
"""For each replica, in order, the (samples, seconds) of the last steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRebalancer:
    """What rebalancing knows between two windows.

    Args:
        shares: The shares that are in use, one per replica; they are stored as fractions
            that add up to 1.
        speeds: What each replica last computed, in samples per second; None where it was
            not measured yet. It starts when every replica has been measured.
        threshold: The least improvement of the predicted step time that is worth a change,
            a fraction from 0 to 1. It must be seen in two windows in a row.
        at_once: The improvement for which one window is enough, at least ``threshold``.
        minimum_share: The least fraction a replica is given, so that it goes on being
            measured; at most 1 / number of replicas. A replica is sure to get a sample of
            every batch if this is 1 / batch size or more.
        maximum_shares: The largest fraction of each replica, 0 or more, such as what its memory
            holds; empty for no limit.
        doubted: The speeds of the last window, if they were for a change that waits for a
            second window; else None. Set by `rebalance_shares`.

    Raises:
        PlanError: PLAN-007 to PLAN-011 for wrong shares, PLAN-032 for wrong settings or
            speeds.
    """

    shares: tuple[float, ...]
    speeds: tuple[float | None, ...] = ()
    threshold: float = 0.05
    at_once: float = 0.20
    minimum_share: float = 0.01
    maximum_shares: tuple[float, ...] = ()
    doubted: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Store shares as fractions, and check the settings."""
        checked = check_shares(self.shares)
        object.__setattr__(self, "shares", _fractions(checked))
        speeds = as_tuple(self.speeds) or (None,) * len(checked)
        object.__setattr__(self, "speeds", speeds)
        _check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalanced:
    """The event of a change of shares.

    Args:
        step: The training step after which the shares changed.
        before: The fractions until then.
        after: The fractions from then on.
        speeds: The speed of each replica in samples per second, from which they follow.
        improvement: The part of the step time that is predicted to be saved, 0 to 1.
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
        step 40: shares 0.500 0.500 -> 0.800 0.200 (400 100 samples/s; step time -60.0 %)
        """
        before = " ".join(f"{share:.3f}" for share in self.before)
        after = " ".join(f"{share:.3f}" for share in self.after)
        speeds = " ".join(f"{speed:.4g}" for speed in self.speeds)
        return (
            f"step {self.step}: shares {before} -> {after} "
            f"({speeds} samples/s; step time -{self.improvement:.1%})".replace("%", " %")
        )


def rebalance_shares(
    rebalancer: ShareRebalancer, window: Window, *, step: int
) -> tuple[ShareRebalancer, Rebalanced | None]:
    """Even the shares by the measurements of one window.

    The speed of a replica is the median of samples / seconds over the window, so that single
    outliers do not count. Steps with 0 samples, and times that are not positive and finite,
    are left out; a replica without a measurement keeps its last speed.

    A change that saves less than ``at_once`` waits for the next window. There it must be
    worth it twice: with the shares that follow from that window, and with those that follow
    from the one before, both judged at the speeds of that window. Steps that scatter make
    it harder: the speeds that the present shares are judged by are raised by two standard
    errors first, so that a window of noise changes nothing.

    Args:
        rebalancer: The state so far.
        window: For each replica the (samples, seconds) of its last steps. Ten or more make
            the median and its error robust; from a single step no error can be told.
        step: The number of the training step, for the event.

    Returns:
        The next state, and the event if the shares changed.

    Raises:
        PlanError: PLAN-033 if the window has another number of replicas.

    >>> rebalancer, event = rebalance_shares(
    ...     ShareRebalancer(shares=(1, 1)), [[(32, 0.08)], [(32, 0.32)]], step=40
    ... )
    >>> [round(share, 6) for share in rebalancer.shares]
    [0.8, 0.2]
    >>> print(event)
    step 40: shares 0.500 0.500 -> 0.800 0.200 (400 100 samples/s; step time -60.0 %)
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
    errors = [0.0 if new is None else new.relative_error for new in measured]
    ideal = _ideal(rebalancer, speeds)
    improvement = _sure_improvement(rebalancer.shares, ideal, speeds, errors)
    if improvement < rebalancer.threshold or improvement <= 0:
        return dataclasses.replace(rebalancer, speeds=latest, doubted=None), None
    if improvement < rebalancer.at_once and not _said_before(rebalancer, speeds, errors):
        return dataclasses.replace(rebalancer, speeds=latest, doubted=speeds), None
    event = Rebalanced(
        step=step,
        before=rebalancer.shares,
        after=ideal,
        speeds=speeds,
        improvement=_improvement(rebalancer.shares, ideal, speeds),
    )
    return dataclasses.replace(rebalancer, shares=ideal, speeds=latest, doubted=None), event


def _ideal(rebalancer: ShareRebalancer, speeds: Sequence[float]) -> tuple[float, ...]:
    return ideal_shares(
        speeds,
        minimum_share=rebalancer.minimum_share,
        maximum_shares=rebalancer.maximum_shares,
    )


def _improvement(before: Sequence[float], after: Sequence[float], speeds: Sequence[float]) -> float:
    return 1.0 - seconds_per_sample(after, speeds) / seconds_per_sample(before, speeds)


def _sure_improvement(
    before: Sequence[float],
    after: Sequence[float],
    speeds: Sequence[float],
    errors: Sequence[float],
) -> float:
    """Return the improvement if the present shares are better than they were measured."""
    kind = [
        speed * (1 + _STANDARD_ERRORS * error) for speed, error in zip(speeds, errors, strict=True)
    ]
    return 1.0 - seconds_per_sample(after, speeds) / seconds_per_sample(before, kind)


def _said_before(
    rebalancer: ShareRebalancer, speeds: Sequence[float], errors: Sequence[float]
) -> bool:
    """Whether the change that the previous window was for is worth it by this one as well."""
    if rebalancer.doubted is None:
        return False
    proposed = _ideal(rebalancer, rebalancer.doubted)
    return _sure_improvement(rebalancer.shares, proposed, speeds, errors) >= rebalancer.threshold


def _fractions(shares: tuple[float, ...]) -> tuple[float, ...]:
    total = math.fsum(shares)
    # Fractions stay as they are: a state that is copied must not drift.
    if abs(total - 1.0) < 1e-12:
        return shares
    return tuple(share / total for share in shares)


def _check_settings(rebalancer: ShareRebalancer) -> None:
    num_replicas = len(rebalancer.shares)
    bounds = {
        "threshold": (rebalancer.threshold, 0.0, 1.0),
        "at_once": (rebalancer.at_once, rebalancer.threshold, 1.0),
        "minimum_share": (rebalancer.minimum_share, 0.0, 1.0 / num_replicas),
    }
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise _wrong_setting(name, value, f"from {least:g} to {most:g}", f"{name}={most:g}")
    for number, speed in enumerate(rebalancer.speeds):
        if speed is not None and not is_usable(speed):
            place = f"speeds[{number}]"
            raise _wrong_setting(place, speed, "finite and above 0", f"None for {place}")
    for number, most in enumerate(rebalancer.maximum_shares):
        if not most >= 0:
            raise _wrong_setting(f"maximum_shares[{number}]", most, "0 or more", "1.0 for no limit")
    if rebalancer.maximum_shares and len(rebalancer.maximum_shares) != num_replicas:
        every = f"one for each of {num_replicas} replicas, or none"
        raise _wrong_setting("maximum_shares", rebalancer.maximum_shares, every, "()")
    if len(rebalancer.speeds) != num_replicas:
        every = f"one for each of {num_replicas} replicas"
        raise _wrong_setting("speeds", rebalancer.speeds, every, f"speeds={(None,) * num_replicas}")


def _wrong_setting(name: str, value: object, right: str, remedy: str) -> PlanError:
    return PlanError(
        "PLAN-032",
        f"{name} of the ShareRebalancer is {value}.",
        why=f"it must be {right}.",
        fix=f"write {remedy}, or leave it out.",
    )
