"""Schedules: literal tables, every replica, and the formulas of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.plan import (
    Replica,
    ScheduleName,
    Stage,
)
from evener.schedule import (
    Schedule,
    Task,
    TimedTask,
    Timeline,
    dependencies,
    forward_schedule_for,
    schedule_for,
    timeline,
)

SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
LETTERS = {"F": "forward", "B": "backward"}
ONES = {"forward": 1.0, "backward": 1.0}


def replica_on(
    devices: Sequence[str], *, micro_batches: int, in_flight: int, schedule: ScheduleName = "1f1b"
) -> Replica:
    return Replica(
        share=1,
        stages=tuple(Stage(device=d, layers=(f"layer_{i}",)) for i, d in enumerate(devices)),
        num_micro_batches=micro_batches,
        in_flight=in_flight,
        schedule=schedule,
    )


def apart(num_devices: int) -> list[str]:
    """Names of devices, one for each stage."""
    return [f"gpu:{i}" for i in range(num_devices)]


def read(text: str, *, stage: int = 0) -> tuple[Task, ...]:
    """Read ``"F0 B0"``, tasks of one stage, or ``"F0.2 B0.2"``, with their stages."""
    tasks = []
    for word in text.split():
        micro_batch, _, own = word[1:].partition(".")
        tasks.append(Task(LETTERS[word[0]], int(own) if own else stage, int(micro_batch)))
    return tuple(tasks)


LITERAL = {
    "GPipe, p=3, m=4": (
        replica_on(apart(3), micro_batches=4, in_flight=4, schedule="gpipe"),
        ["F0 F1 F2 F3 B3 B2 B1 B0"] * 3,
    ),
    "GPipe in waves of 2, p=2, m=5": (
        replica_on(apart(2), micro_batches=5, in_flight=2, schedule="gpipe"),
        ["F0 F1 B1 B0 F2 F3 B3 B2 F4 B4"] * 2,
    ),
    "1F1B, p=4, m=8": (
        replica_on(apart(4), micro_batches=8, in_flight=4),
        [
            "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
            "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
            "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
            "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
        ],
    ),
    "1F1B with few in flight, p=3, m=4": (
        replica_on(apart(3), micro_batches=4, in_flight=2),
        ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3", "F0 B0 F1 B1 F2 B2 F3 B3"],
    ),
    "gradient accumulation, p=1, m=3": (
        replica_on(apart(1), micro_batches=3, in_flight=1),
        ["F0 B0 F1 B1 F2 B2"],
    ),
    "all on one device, one in flight": (
        replica_on("aaa", micro_batches=2, in_flight=1),
        ["F0.0 F0.1 F0.2 B0.2 B0.1 B0.0 F1.0 F1.1 F1.2 B1.2 B1.1 B1.0"],
    ),
    "all on one device holds one micro-batch, however many it may": (
        replica_on("aa", micro_batches=2, in_flight=2),
        ["F0.0 F0.1 B0.1 B0.0 F1.0 F1.1 B1.1 B1.0"],
    ),
    "a, b, a": (
        replica_on("aba", micro_batches=4, in_flight=3),
        [
            "F0.0 F1.0 F0.2 B0.2 F1.2 B1.2 B0.0 B1.0 F2.0 F3.0 F2.2 B2.2 F3.2 B3.2 B2.0 B3.0",
            "F0.1 F1.1 B0.1 B1.1 F2.1 F3.1 B2.1 B3.1",
        ],
    ),
    "a, b, a by GPipe": (
        replica_on("aba", micro_batches=3, in_flight=2, schedule="gpipe"),
        [
            "F0.0 F1.0 F0.2 F1.2 B1.2 B0.2 B1.0 B0.0 F2.0 F2.2 B2.2 B2.0",
            "F0.1 F1.1 B1.1 B0.1 F2.1 B2.1",
        ],
    ),
}


@pytest.mark.parametrize("name", LITERAL)
def test_literal_orders(name: str) -> None:
    replica, lines = LITERAL[name]
    schedule = schedule_for(replica)
    assert schedule.orders == tuple(read(line, stage=stage) for stage, line in enumerate(lines))
    assert schedule.devices == tuple(dict.fromkeys(stage.device for stage in replica.stages))


def test_forwards_alone_go_by_micro_batch_then_stage() -> None:
    replica = replica_on("aba", micro_batches=2, in_flight=1, schedule="gpipe")
    schedule = forward_schedule_for(replica)
    assert str(schedule) == "a  F0.0 F0.2 F1.0 F1.2\nb  F0.1 F1.1"
    times = timeline(schedule, ONES)
    assert times.peak_live == (1, 1, 1)
    assert times.peak_in_flight == 1
    apart_from_each_other = forward_schedule_for(replica_on(apart(3), micro_batches=8, in_flight=1))
    assert timeline(apart_from_each_other, ONES).peak_in_flight == 3


def test_dependencies_by_hand() -> None:
    def needed(text: str) -> str:
        return " ".join(map(str, dependencies(*read(text), num_stages=3)))

    assert needed("F4.0") == ""
    assert needed("F4.2") == "F4.1"
    assert needed("B4.2") == "F4.2"
    assert needed("B4.0") == "F4.0 B4.1"


# Every replica


@st.composite
def replicas(draw: st.DrawFn) -> Replica:
    """Any replica of 1 to 6 stages; as often as not its stages go round the devices."""
    if draw(st.booleans()):
        num_devices = draw(st.integers(1, 3))
        devices = apart(num_devices) * draw(st.integers(1, 6 // num_devices))
        count = st.integers(1, 64 // num_devices).map(lambda n: n * num_devices)
        num_micro_batches = draw(count | st.integers(1, 64))
    else:
        devices = draw(st.lists(st.sampled_from(apart(6)), min_size=1, max_size=6))
        num_micro_batches = draw(st.integers(1, 64))
    in_flight = st.integers(1, num_micro_batches)
    return replica_on(
        devices,
        micro_batches=num_micro_batches,
        in_flight=draw(in_flight | st.integers(1, min(8, num_micro_batches))),
        schedule=draw(st.sampled_from(SCHEDULES)),
    )


def random_seconds(random) -> dict[Task, float]:
    """Return a mapping that draws the time of a task when it is first asked for."""

    class Drawn(dict):
        def __missing__(self, task: Task) -> float:
            return self.setdefault(task, random.choice([1e-3, 1.0, random.uniform(0.1, 9), 50.0]))

    return Drawn()


@settings(max_examples=150)
@given(replicas())
def test_every_task_is_there_once_on_the_device_of_its_stage(replica: Replica) -> None:
    schedule = schedule_for(replica)
    expected = {
        Task(kind, stage, k)
        for kind in ("forward", "backward")
        for stage in range(len(replica.stages))
        for k in range(replica.num_micro_batches)
    }
    tasks = [task for order in schedule.orders for task in order]
    assert len(tasks) == len(expected)
    assert set(tasks) == expected
    assert schedule.devices == tuple(dict.fromkeys(stage.device for stage in replica.stages))
    for device, order in zip(schedule.devices, schedule.orders, strict=True):
        assert {replica.stages[task.stage].device for task in order} == {device}


@settings(max_examples=150)
@given(replicas(), st.randoms(use_true_random=False))
def test_limits_hold_however_long_the_tasks_take(replica: Replica, random) -> None:
    schedule = schedule_for(replica)
    seconds = random_seconds(random)
    times = timeline(schedule, seconds.__getitem__)
    check_times(times, schedule, seconds)
    in_flight = replica.in_flight
    assert times.peak_in_flight <= in_flight
    assert max(times.peak_live) <= in_flight
    if replica.schedule == "gpipe":
        return
    for stage, events in by_stage(times, len(replica.stages)).items():
        assert most_without_backward(events) <= max(1, in_flight - stage)


@settings(max_examples=50)
@given(replicas(), st.randoms(use_true_random=False))
def test_forwards_alone_run_however_long_they_take(replica: Replica, random) -> None:
    schedule = forward_schedule_for(replica)
    seconds = random_seconds(random)
    check_times(timeline(schedule, seconds.__getitem__), schedule, seconds)
    num_tasks = sum(map(len, schedule.orders))
    assert num_tasks == len(replica.stages) * replica.num_micro_batches == len(seconds)


def check_times(times: Timeline, schedule: Schedule, seconds: dict[Task, float]) -> None:
    """Every task begins once all it waits for has ended, and not later."""
    ends = {event.task: event.end_seconds for device in times.events for event in device}
    for order, events in zip(schedule.orders, times.events, strict=True):
        assert tuple(event.task for event in events) == order
        before = 0.0
        for event in events:
            needed = dependencies(event.task, num_stages=schedule.num_stages)
            assert event.begin_seconds == max([before, *(ends[task] for task in needed)])
            assert event.end_seconds == event.begin_seconds + seconds[event.task]
            before = event.end_seconds
    assert times.makespan == max(ends.values())
    assert 0.0 <= times.bubble < 1.0


def by_stage(times: Timeline, num_stages: int) -> dict[int, list[TimedTask]]:
    events = sorted((e for device in times.events for e in device), key=lambda e: e.begin_seconds)
    return {stage: [e for e in events if e.task.stage == stage] for stage in range(num_stages)}


def most_without_backward(events: Sequence[TimedTask]) -> int:
    """Return how many forwards are ahead of the backwards of one stage at most."""
    ahead = most = 0
    for event in events:
        ahead += {"forward": 1, "backward": -1}[event.task.kind]
        most = max(most, ahead)
    return most


# The formulas of the papers. Whole seconds make the sums exact.

sizes = st.integers(1, 16).flatmap(lambda p: st.tuples(st.just(p), st.integers(p, 64) | st.just(p)))
lengths = st.integers(1, 9).map(float)


@settings(max_examples=60)
@given(sizes, lengths, lengths)
def test_gpipe_and_1f1b_have_the_same_bubble(
    size: tuple[int, int], forward: float, backward: float
) -> None:
    p, m = size
    seconds = {"forward": forward, "backward": backward}
    first, other = (
        timeline(
            schedule_for(replica_on(apart(p), micro_batches=m, in_flight=f, schedule=name)), seconds
        )
        for name, f in (("1f1b", p), ("gpipe", m))
    )
    assert first.makespan == other.makespan == (m + p - 1) * (forward + backward)
    assert first.bubble == other.bubble == pytest.approx((p - 1) / (m + p - 1))
    assert first.peak_live == tuple(min(p - s, m) for s in range(p))
    assert other.peak_live == (m,) * p


def test_a_timeline_by_hand() -> None:
    replica = replica_on(["cpu:1", "cpu:0"], micro_batches=2, in_flight=2)
    schedule, seconds = schedule_for(replica), {"forward": 1.0, "backward": 2.0}
    times = timeline(schedule, lambda task: seconds[task.kind] * (1 + task.stage))
    #  cpu:1   F0 F1 .  .  .  .  .  B0 B0 .  .  .  .  B1 B1
    #  cpu:0   .  F0 F0 B0 B0 B0 B0 F1 F1 B1 B1 B1 B1 .  .
    assert [[event[1:] for event in device] for device in times.events] == [
        [(0, 1), (1, 2), (7, 9), (13, 15)],
        [(1, 3), (3, 7), (7, 9), (9, 13)],
    ]
    assert times.makespan == 15
    assert times.bubble == pytest.approx(1 - (6 + 12) / 30)
    assert (times.peak_live, times.peak_in_flight) == ((2, 1), 2)
    nothing = timeline(schedule, lambda task: 0.0)
    assert (nothing.makespan, nothing.bubble) == (0.0, 0.0)


def test_a_schedule_that_cannot_end_is_a_bug_of_ours() -> None:
    stuck = Schedule(devices=("a", "b"), orders=(read("B0 F0"), read("F0 B0", stage=1)))
    with pytest.raises(AssertionError, match="never end"):
        timeline(stuck, ONES)
