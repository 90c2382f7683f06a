"""Feedback while a run goes on: a trial of plans, and waits for data."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from evener.planner.rebalancing import BLOCK, MOST_ROUNDS, NUM_STEPS, ROUNDS, DataWait, PlanTrial

FIRST_STEP = 1.0


def run(
    trial: PlanTrial, seconds: Callable[[int, int], float], *, num_steps: int = 2000
) -> list[int]:
    """Record steps until the trial is over; return the plan of each."""
    plans: list[int] = []
    seen: set[int] = set()
    while not trial.is_over and len(plans) < num_steps:
        plan = trial.current
        plans.append(plan)
        trial.record(FIRST_STEP if plan not in seen else seconds(plan, len(plans)))
        seen.add(plan)
    return plans


def constant(of_plans: Sequence[float]) -> Callable[[int, int], float]:
    return lambda plan, _: of_plans[plan]


@pytest.mark.parametrize(
    ("of_plans", "kept"),
    [
        ([0.2, 0.3, 0.4], 0),
        ([0.3, 0.2, 0.4], 1),
        ([0.4, 0.3, 0.2], 2),
        ([0.2, 0.2, 0.2], 0),
        # Not worth it.
        ([0.2, 0.199, 0.198], 0),
    ],
)
@pytest.mark.parametrize("start", [0, 1, 2])
def test_the_fastest_plan_stays_and_the_simplest_of_equal_ones(
    of_plans: list[float], kept: int, start: int
) -> None:
    trial = PlanTrial(3, start=start)
    run(trial, constant(of_plans))
    assert trial.is_over
    assert trial.current == kept


def test_a_run_that_is_shorter_than_a_change_of_plans_tries_nothing() -> None:
    trial = PlanTrial(3, start=2)
    # The first step takes 1 s, the others 0.9 s together.
    assert set(run(trial, constant([0.001, 0.001, 0.001]), num_steps=900)) == {2}
    assert not trial.is_over


def test_every_plan_is_timed_equally_often_in_turns() -> None:
    trial = PlanTrial(3, start=2)
    plans = run(trial, constant([0.2, 0.2, 0.2]))
    begin = next(k for k, plan in enumerate(plans) if plan != 2)
    tried = plans[begin:]
    # Turns: 0 1 2 | 2 1 0 | 0 1 2.
    turns = [plan for k, plan in enumerate(tried) if k == 0 or plan != tried[k - 1]]
    assert turns == [0, 1, 2, 1, 0, 1, 2]
    assert all(tried.count(plan) >= ROUNDS * BLOCK for plan in range(3))


def test_a_plan_that_is_far_too_slow_is_left_after_its_first_block() -> None:
    trial = PlanTrial(2, start=0)
    plans = run(trial, constant([0.2, 4.0]))
    assert trial.current == 0
    assert plans.count(1) == 2 + BLOCK


@pytest.mark.parametrize("seed", range(40))
def test_noise_keeps_the_simpler_plan(seed: int) -> None:
    """Equal plans on a machine whose steps scatter by a third, and drift by half."""
    draw = random.Random(seed)

    def noisy(_: int, step: int) -> float:
        return 0.2 * (1 + 0.5 * step / 100) * draw.lognormvariate(0, 0.33)

    trial = PlanTrial(2, start=1)
    run(trial, noisy)
    assert trial.current == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("step", [0.001, 0.02])
def test_a_small_gain_is_found_by_more_rounds(seed: int, step: float) -> None:
    draw = random.Random(seed)
    trial = PlanTrial(2, start=0)
    plans = run(
        trial,
        lambda plan, _: step * (1.0, 0.85)[plan] * draw.lognormvariate(0, 0.08),
        num_steps=10**5,
    )
    assert trial.current == 1
    begin = plans.index(1)
    turns = 1 + sum(before != after for before, after in itertools.pairwise(plans[begin:]))
    assert turns <= 2 * MOST_ROUNDS


def test_a_machine_that_is_slow_for_one_round_does_not_decide() -> None:
    trial = PlanTrial(2, start=0)
    # The first steps of the faster plan take twice as long.
    run(trial, lambda plan, step: 0.2 if plan == 0 else (0.32 if step < 20 else 0.16))
    assert trial.current == 1


def test_a_plan_that_fails_is_not_tried_again() -> None:
    trial = PlanTrial(3, start=2)
    while trial.current == 2:
        trial.record(0.5)
    assert trial.current == 0 and trial.is_unproven
    trial.fail()
    plans = run(trial, constant([0.1, 0.3, 0.2]))
    assert 0 not in plans
    assert trial.current == 2
    # If all others fail, the first plan stays.
    trial = PlanTrial(2, start=1)
    while trial.current == 1:
        trial.record(0.5)
    trial.fail()
    assert trial.is_over and trial.current == 1
    assert PlanTrial(1, start=0).is_over


def test_a_plan_is_proven_after_two_steps() -> None:
    trial = PlanTrial(2, start=0)
    while trial.current == 0:
        assert not trial.is_unproven
        trial.record(0.5)
    seen = []
    for _ in range(3):
        seen.append(trial.is_unproven)
        trial.record(0.5)
    assert seen == [True, True, False]


class Epochs:
    """Epochs of steps with a clock of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.wait = DataWait(
            self.lines.append, lambda: "every worker maps all rows", clock=lambda: self.now
        )

    def read(self, seconds: float, batches: list[int]) -> list[int]:
        self.now += seconds
        return batches

    def epoch(self, num_steps: int, *, data: float, step: float, first: float = 0.0) -> None:
        for number in range(num_steps):
            seconds = data if number else first
            assert self.wait.take(lambda seconds=seconds: self.read(seconds, [1])) == [1]
            self.now += step
        assert not self.wait.take(lambda: self.read(data, []))


def test_it_is_told_once_with_its_cost() -> None:
    run = Epochs()
    run.epoch(4 * NUM_STEPS, data=0.1, step=0.1)
    (line,) = run.lines
    assert f"waited for its data 5.0 s of the 10.0 s of {NUM_STEPS} steps" in line
    assert "every worker maps all rows" in line


@pytest.mark.parametrize(
    ("data", "step"),
    [
        pytest.param(0.03, 0.2, id="a small part"),
        pytest.param(0.001, 0.001, id="less than a second"),
    ],
)
def test_little_is_not_told(data: float, step: float) -> None:
    run = Epochs()
    run.epoch(3 * NUM_STEPS, data=data, step=step)
    assert not run.lines


def test_short_epochs_count_together_without_the_filling_of_buffers() -> None:
    waiting, filling = Epochs(), Epochs()
    for _ in range(2 * NUM_STEPS):
        waiting.epoch(3, data=0.1, step=0.1)
        filling.epoch(3, first=60.0, data=0.01, step=0.1)
    assert len(waiting.lines) == 1
    assert not filling.lines


def test_batches_between_which_nothing_is_computed_do_not_count() -> None:
    """A loop that only reads, such as one that counts the samples."""
    run = Epochs()
    run.wait = DataWait(run.lines.append, lambda: "", num_steps=lambda: 3, clock=lambda: run.now)
    run.epoch(3 * NUM_STEPS, data=0.1, step=0.0)
    assert not run.lines


def test_what_is_read_by_itself_counts_once() -> None:
    run = Epochs()

    def read() -> list[int]:
        return [*run.wait.take(lambda: run.read(0.1, [1]))]

    for _ in range(NUM_STEPS):
        run.wait.take(read)
        run.now += 0.1
    assert not run.lines
    run.wait.take(read)
    assert len(run.lines) == 1


def test_an_error_of_the_data_leaves_it_as_it_was() -> None:
    run = Epochs()

    def fail() -> list[int]:
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        run.wait.take(fail)
    run.epoch(2 * NUM_STEPS, data=0.1, step=0.1)
    assert len(run.lines) == 1
