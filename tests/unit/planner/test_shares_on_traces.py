"""Shares on traces of devices: few changes, little lost to experiments, slowdowns are followed.

A trace has the seconds per sample of every device in every step, noise and load included, so a run
on it needs no clock. A change that is taken back is an experiment; lost is what its steps took
longer than they would have with the shares before it. The constants of the controller were chosen
on `SEEN`; as a program, this file prints the figures of all traces.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from evener.feedback import ShareRebalancer, rebalance_shares
from evener.plan import split_batch
from evener.planner.rebalancing import ideal_shares, seconds_per_sample

WINDOW, BATCH = 8, 256
NEAR = 1.1
"""A slowdown is followed once a step takes at most so many times the ideal."""

Speed = Callable[[int], float]
"""Samples per second in a step, without noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    rows: tuple[tuple[float, ...], ...]  # Seconds per sample, by step and device.
    call_seconds: float = 0.0  # Of each device and step, whatever its samples.
    # By step and device: whether the device waits for others, so that its samples do not matter.
    held: tuple[tuple[bool, ...], ...] = ()
    slowed: tuple[int, ...] = ()  # Steps at which the speed of a device really changes.
    speeds: tuple[Speed, ...] = ()  # Without noise, where it is known.
    shares: tuple[float, ...] = ()  # At the start; even if empty.


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    num_changes: int
    num_taken_back: int
    lost: float  # Fraction of the time that experiments have cost.
    gain: float  # Fraction of the time of unchanged shares that was saved.
    followed: tuple[int | None, ...]  # Steps until each slowdown was followed.


def train(trace: Trace) -> Outcome:
    first = trace.shares or (1.0,) * len(trace.rows[0])
    rebalancer = ShareRebalancer(shares=first)
    first = rebalancer.shares
    window: list[list[tuple[float, float]]] = [[] for _ in first]
    total = unchanged = lost = experiment = 0.0
    num_changes = num_taken_back = 0
    before: tuple[float, ...] | None = None
    used: list[tuple[float, ...]] = []

    def step_seconds(shares: Sequence[float], step: int) -> list[float]:
        sizes = list(split_batch(BATCH, shares))
        if trace.held:
            sizes = [BATCH / 2 if h else n for h, n in zip(trace.held[step], sizes, strict=True)]
        row = trace.rows[step]
        return [trace.call_seconds + n * each for n, each in zip(sizes, row, strict=True)]

    for step in range(len(trace.rows)):
        shares = rebalancer.shares
        used.append(shares)
        seconds = step_seconds(shares, step)
        total += max(seconds)
        unchanged += max(step_seconds(first, step))
        if before is not None:
            experiment += max(seconds) - max(step_seconds(before, step))
        for steps, n, each in zip(window, split_batch(BATCH, shares), seconds, strict=True):
            steps.append((n, each))
        if (step + 1) % WINDOW == 0:
            rebalancer, event = rebalance_shares(rebalancer, window, step=step + 1)
            window = [[] for _ in first]
            if event is not None and before is not None and event.after == before:
                num_taken_back += 1
                lost += experiment
            num_changes += event is not None
            before = event.before if rebalancer.trial is not None and event else None
            experiment = 0.0
    followed = tuple(_followed(trace, used, begin) for begin in trace.slowed)
    return Outcome(
        num_changes=num_changes,
        num_taken_back=num_taken_back,
        lost=lost / total,
        gain=1 - total / unchanged,
        followed=followed,
    )


def _followed(trace: Trace, used: Sequence[tuple[float, ...]], begin: int) -> int | None:
    for step in range(begin, len(used)):
        speeds = [speed(step) for speed in trace.speeds]
        ideal = seconds_per_sample(ideal_shares(speeds, minimum_share=0.01), speeds)
        if seconds_per_sample(used[step], speeds) <= NEAR * ideal:
            return step - begin
    return None


def drawn(
    *speeds: Speed,
    seed: int,
    num_steps: int = 4000,
    noise: float = 0.03,
    load: Callable[[random.Random, int], list[float]] | None = None,
    **options: object,
) -> Trace:
    random_ = random.Random(seed)
    factors = [[random_.lognormvariate(0, noise) for _ in range(num_steps)] for _ in speeds]
    if load is not None:
        for mine in factors:
            mine[:] = [f * g for f, g in zip(mine, load(random_, num_steps), strict=True)]
    rows = tuple(
        tuple(f[t] / speed(t) for f, speed in zip(factors, speeds, strict=True))
        for t in range(num_steps)
    )
    return Trace(rows=rows, speeds=speeds, **options)  # type: ignore[arg-type]


def busy(random_: random.Random, num_steps: int) -> list[float]:
    """Other programs slow the device down 1.5 to 4 times for 5 to 60 steps, half of the time."""
    found: list[float] = []
    while len(found) < num_steps:
        factor = random_.uniform(1.5, 4.0) if random_.random() < 0.5 else 1.0
        found += [factor] * random_.randint(5, 60)
    return found[:num_steps]


def drifting(random_: random.Random, num_steps: int) -> list[float]:
    """A load that is like its last value, as of programs that come and go."""
    found, state = [], 0.0
    for _ in range(num_steps):
        state = 0.97 * state + random_.gauss(0, 0.06)
        found.append(1 + max(0.0, state))
    return found


def hiccups(random_: random.Random, num_steps: int) -> list[float]:
    """One step in twelve takes two to ten times as long."""
    return [random_.uniform(2, 10) if random_.random() < 1 / 12 else 1.0 for _ in range(num_steps)]


def contended(seed: int, num_steps: int = 4000) -> Trace:
    """One device at a time waits for a core 8 to 60 steps, whatever its samples."""
    random_ = random.Random(seed)
    rows, held = [], []
    while len(rows) < num_steps:
        waiting = random_.choice((0, 1, 2))
        for _ in range(random_.randint(8, 60)):
            held.append(tuple(k == waiting for k in range(2)))
            rows.append(
                tuple((2 if k == waiting else 1) * random_.lognormvariate(0, 0.1) for k in range(2))
            )
    return Trace(rows=tuple(rows), held=tuple(held))


def const(speed: float) -> Speed:
    return lambda _: speed


def stepwise(*changes: tuple[int, float]) -> Speed:
    return lambda step: [speed for at, speed in changes if step >= at][-1]


def heating(speed: float, left: float, num_steps: float) -> Speed:
    return lambda step: speed * (1 - (1 - left) * min(1.0, step / num_steps))


def throttling(speed: float, left: float, period: int) -> Speed:
    """Slows down while it heats up, then cools down at once."""
    return lambda step: speed * (1 - (1 - left) * (step % period) / period)


def recorded(name: str) -> Trace:
    """Return steps of two CPU devices of a busy machine of two cores."""
    devices = json.loads((Path(__file__).parent / "recorded_steps.json").read_text())[name]
    return Trace(
        rows=tuple(tuple(1e-6 * each for each in row) for row in zip(*devices, strict=True))
    )


SEEN = {
    "steady, equal": drawn(const(1000), const(1000), seed=1),
    "steady, 3 : 1 from even": drawn(const(3000), const(1000), seed=2, slowed=(0,)),
    "busy": drawn(const(1000), const(1000), seed=3, noise=0.15, load=busy),
    "slowed to 40 % and back": drawn(
        const(1000),
        stepwise((0, 1000), (1003, 400), (2506, 1000)),
        seed=4,
        slowed=(1003, 2506),
    ),
    "heating": drawn(const(1000), heating(1000, 0.6, 2000), seed=5, noise=0.05),
    "a fixed cost of a call": drawn(const(3000), const(1000), seed=6, call_seconds=0.15),
    "recorded, steps of 2 ms": recorded("128 units, batch 128"),
    "waiting for a core": contended(7),
}
UNSEEN = {
    "waiting for a core, again": contended(17),
    "steady, four unequal, hiccups": drawn(
        const(800), const(400), const(400), const(100), seed=11, load=hiccups, slowed=(0,)
    ),
    "busy, a load that drifts": drawn(
        const(1000), const(600), seed=12, load=drifting, shares=(5, 3)
    ),
    "staircase": drawn(
        const(1000),
        stepwise((0, 1000), (500, 800), (1001, 600), (1502, 400), (2004, 250), (3005, 1000)),
        seed=13,
        slowed=(500, 1001, 1502, 2004, 3005),
    ),
    "throttling": drawn(const(1000), throttling(1000, 0.6, 700), seed=14),
    "busy, then slowed to 40 %": drawn(
        const(1000), stepwise((0, 1000), (2007, 400)), seed=15, noise=0.1, load=busy, slowed=(2007,)
    ),
    "recorded, steps of 1 ms": recorded("64 units, batch 64"),
    "noisy and slowed": drawn(
        const(1000), const(1000), stepwise((0, 1000), (777, 500)), seed=16, noise=0.1, slowed=(777,)
    ),
    "noisy, five unequal": drawn(
        *map(const, (800, 400, 400, 100, 50)), seed=18, num_steps=8000, noise=0.1, slowed=(0,)
    ),
    "one of four slowed and back": drawn(
        *map(const, (400, 400, 400)),
        stepwise((0, 400), (1003, 160), (2506, 400)),
        seed=19,
        slowed=(1003, 2506),
    ),
    "busy, with a fixed cost of a call": drawn(
        const(200_000), const(200_000), seed=20, noise=0.15, load=busy, call_seconds=0.002
    ),
}

# At most so many changes, steps until the last slowdown to be followed is, and the least gain.
_LIMITS = {
    "steady, equal": (0, None, 0.0),
    "steady, 3 : 1 from even": (1, 20, 0.48),
    "busy": (90, None, 0.05),
    "slowed to 40 % and back": (2, 20, 0.24),
    "heating": (4, None, 0.16),
    "a fixed cost of a call": (4, None, 0.16),
    "waiting for a core": (15, None, -0.01),
    "recorded, steps of 2 ms": (2, None, 0.0),
    "waiting for a core, again": (15, None, -0.01),
    "steady, four unequal, hiccups": (4, 20, 0.6),
    "busy, a load that drifts": (40, None, -0.01),
    "staircase": (6, 20, 0.37),
    "throttling": (20, None, 0.07),
    # Load of 5 to 60 steps cannot be told from a slowdown before it has lasted longer.
    "busy, then slowed to 40 %": (95, 110, 0.2),
    "recorded, steps of 1 ms": (2, None, 0.0),
    "noisy and slowed": (2, 20, 0.3),
    "noisy, five unequal": (3, 20, 0.83),
    "one of four slowed and back": (2, 20, 0.3),
    "busy, with a fixed cost of a call": (12, None, -0.01),
}


@pytest.mark.parametrize("name", SEEN | UNSEEN)
def test_shares_on_a_trace(name: str) -> None:
    most_changes, most_steps, least_gain = _LIMITS[name]
    outcome = train((SEEN | UNSEEN)[name])
    assert outcome.num_changes <= most_changes
    assert outcome.lost < 0.01
    assert bool(outcome.followed) == (most_steps is not None)
    for steps in outcome.followed:
        assert steps is not None and most_steps is not None and steps <= most_steps
    # An experiment that is wrong for long is a loss too, beside what it costs until it is judged.
    assert outcome.gain >= least_gain


if __name__ == "__main__":
    for name, trace in (SEEN | UNSEEN).items():
        print(f"{name:32}", train(trace))
