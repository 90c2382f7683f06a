"""Rebalance the shares of replicas while training, from the times of their steps.

A pure controller: it maps a state and the measurements of one window to the next state and maybe an
event. It has no clock and does not import TensorFlow.

::

    window            speeds                  shares
    (samples, s) -->  median of       -->     proportional to speed  -->  worth it, in two
    per replica       samples / s             at least minimum_share      windows? >= 5 %

    changed  -->  next window: faster, by a quarter of the prediction?  --> no: back, and rest

Noise within a window causes no change: the improvement is computed after the present speeds have
been raised by two standard errors. What lasts longer than a window, such as other programs and the
fixed cost of a call, may cause one, which the next window takes back. Each time the rest before the
next change is twice as long, and half as long after a change that was right: a long run loses
little by changes that were wrong.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evener.errors import PlanError
from evener.feedback.speeds import ideal_shares, is_usable, measured_speed, seconds_per_sample
from evener.plan.shares import check_shares
from evener.plan.typed_values import as_tuple

# Number of standard errors by which a speed may be better than measured.
_STANDARD_ERRORS = 2.0

Window = Sequence[Sequence[tuple[float, float]]]
"""Pairs (samples, seconds) of the last steps, for each replica in order."""


_LEAST_OF_PREDICTION = 0.25
"""Part of the predicted improvement that the next window has to show."""
_LONGEST_REST = 8
"""Windows between a change that was taken back and the next one, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Change of shares that the next window has to confirm.

    Attributes:
        before: Fractions before the change.
        seconds: Measured seconds per sample before the change.
        improvement: Predicted fraction of the step time that is saved.
    """

    before: tuple[float, ...]
    seconds: float
    improvement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRebalancer:
    """State of rebalancing between two windows.

    Args:
        shares: Current shares, one per replica; they are stored as fractions that add up to 1.
        speeds: Last measured speed of each replica in samples per second; None if it was not
            measured yet. Rebalancing starts when every replica has been measured.
        threshold: Least improvement of the predicted step time for a change, a fraction from 0 to
            1. Two consecutive windows must show it.
        minimum_share: Least fraction of a replica, so that it is still measured; at most
            1 / number of replicas. With 1 / batch size or more, every replica gets a sample of
            every batch.
        maximum_shares: Largest fraction of each replica, 0 or more, such as its memory allows;
            empty for no limit.
        doubted: Speeds of the last window if they propose a change that waits for a second window;
            otherwise None. Set by `rebalance_shares`.
        trial: Last change, if no window was measured since. Set by `rebalance_shares`.
        rest: Windows that change nothing, from now on. Set by `rebalance_shares`.
        next_rest: Windows that follow a change that is taken back. Set by `rebalance_shares`.

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
    trial: Trial | None = None
    rest: int = 0
    next_rest: int = 1

    def __post_init__(self) -> None:
        """Store shares as fractions, and check the settings."""
        checked = check_shares(self.shares)
        object.__setattr__(self, "shares", _fractions(checked))
        speeds = as_tuple(self.speeds) or (None,) * len(checked)
        object.__setattr__(self, "speeds", speeds)
        _check_settings(self)


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
    """Rebalance the shares by the measurements of one window.

    The speed of a replica is the median of samples / seconds over the window, so single outliers do
    not count. Steps with 0 samples, and times that are not positive and finite, are ignored; a
    replica without a measurement keeps its last speed.

    A change waits for the next window. There it must be worth it twice: with the shares that follow
    from that window, and with those that follow from the one before, both judged at the speeds of
    that window. Steps that scatter make it harder: the speeds that the present shares are judged by
    are raised by two standard errors first, so that a window of noise changes nothing.

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
    step 40: shares 0.500 0.500 -> 0.800 0.200 (400 100 samples/s; step time -60.0 %)
    """
    if len(window) != len(rebalancer.shares):
        raise PlanError(
            "PLAN-033",
            f"The window measures {len(window)} replicas; there are {len(rebalancer.shares)}.",
            why="the window needs one list of (samples, seconds) per replica; a list may be empty.",
            fix="for two replicas of which one was idle: [[(32, 0.1)], []].",
        )
    trial = rebalancer.trial
    measured = [measured_speed(steps) for steps in window]
    latest = tuple(
        last if new is None else new.median
        for new, last in zip(measured, rebalancer.speeds, strict=True)
    )
    speeds = tuple(speed for speed in latest if speed is not None)
    if len(speeds) < len(latest):
        return dataclasses.replace(rebalancer, speeds=latest), None
    rebalancer = dataclasses.replace(rebalancer, speeds=latest, trial=None)
    seconds = _measured_seconds(window)
    if trial is not None and seconds is not None:
        if _has_failed(trial, seconds):
            return _taken_back(rebalancer, trial, seconds, speeds, step)
        rebalancer = dataclasses.replace(rebalancer, next_rest=max(1, rebalancer.next_rest // 2))
    if rebalancer.rest:
        return dataclasses.replace(rebalancer, rest=rebalancer.rest - 1, doubted=None), None
    errors = [0.0 if new is None else new.relative_error for new in measured]
    ideal = _ideal(rebalancer, speeds)
    improvement = _sure_improvement(rebalancer.shares, ideal, speeds, errors)
    if improvement < rebalancer.threshold or improvement <= 0:
        return dataclasses.replace(rebalancer, doubted=None), None
    if not _is_confirmed(rebalancer, speeds, errors):
        return dataclasses.replace(rebalancer, doubted=speeds), None
    event = Rebalanced(
        step=step,
        before=rebalancer.shares,
        after=ideal,
        speeds=speeds,
        improvement=_improvement(rebalancer.shares, ideal, speeds),
    )
    begun = None
    if seconds is not None:
        begun = Trial(before=event.before, seconds=seconds, improvement=event.improvement)
    return dataclasses.replace(rebalancer, shares=ideal, doubted=None, trial=begun), event


def _measured_seconds(window: Window) -> float | None:
    """Return the median of the seconds per sample of whole steps, None if none is usable."""
    found: list[float] = []
    if len({len(steps) for steps in window}) == 1:
        for replicas in zip(*window, strict=True):
            num_samples = math.fsum(samples for samples, _ in replicas)
            slowest = max(seconds for _, seconds in replicas)
            if num_samples > 0 and is_usable(slowest):
                found.append(slowest / num_samples)
    return statistics.median(found) if found else None


def _has_failed(trial: Trial, seconds: float) -> bool:
    least = _LEAST_OF_PREDICTION * trial.improvement
    return seconds > trial.seconds * (1.0 - least)


def _taken_back(
    rebalancer: ShareRebalancer, trial: Trial, seconds: float, speeds: tuple[float, ...], step: int
) -> tuple[ShareRebalancer, Rebalanced]:
    """Return to the shares before a change, and rest."""
    shares = _ideal(rebalancer, trial.before)
    event = Rebalanced(
        step=step,
        before=rebalancer.shares,
        after=shares,
        speeds=speeds,
        improvement=max(0.0, 1.0 - trial.seconds / seconds),
    )
    rest = rebalancer.next_rest
    next_rest = min(2 * rest, _LONGEST_REST)
    return dataclasses.replace(
        rebalancer, shares=shares, doubted=None, rest=rest, next_rest=next_rest
    ), event


def _ideal(rebalancer: ShareRebalancer, speeds: Sequence[float]) -> tuple[float, ...]:
    """Return the shares by speed, or other relative shares, within the bounds."""
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
    """Return the improvement if the present shares are faster than measured."""
    kind = [
        speed * (1 + _STANDARD_ERRORS * error) for speed, error in zip(speeds, errors, strict=True)
    ]
    return 1.0 - seconds_per_sample(after, speeds) / seconds_per_sample(before, kind)


def _is_confirmed(
    rebalancer: ShareRebalancer, speeds: Sequence[float], errors: Sequence[float]
) -> bool:
    """Whether this window confirms the change that the previous window proposed."""
    if rebalancer.doubted is None:
        return False
    proposed = _ideal(rebalancer, rebalancer.doubted)
    return _sure_improvement(rebalancer.shares, proposed, speeds, errors) >= rebalancer.threshold


def _fractions(shares: tuple[float, ...]) -> tuple[float, ...]:
    total = math.fsum(shares)
    # Keep fractions unchanged: a copied state must not drift.
    if abs(total - 1.0) < 1e-12:
        return shares
    return tuple(share / total for share in shares)


def _check_settings(rebalancer: ShareRebalancer) -> None:
    num_replicas = len(rebalancer.shares)
    bounds = {
        "threshold": (rebalancer.threshold, 0.0, 1.0),
        "minimum_share": (rebalancer.minimum_share, 0.0, 1.0 / num_replicas),
    }
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise _wrong_setting(name, value, f"from {least:g} to {most:g}", f"{name}={most:g}")
    for number, speed in enumerate(rebalancer.speeds):
        if speed is not None and not is_usable(speed):
            path = f"speeds[{number}]"
            raise _wrong_setting(path, speed, "finite and above 0", f"None for {path}")
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
