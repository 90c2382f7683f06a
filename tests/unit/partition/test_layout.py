"""Device and order of the parts of a step: units follow the schedule, and pass every barrier."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.errors import EngineError
from evener.partition.layout import Layout, MicroBatch
from evener.partition.order import Turn, Unit, order_units, pass_of, positions_in_schedule
from evener.plan import Plan, Replica, Stage
from evener.plan.parts import matches, parts_of_path
from evener.schedule import Schedule, Task, dependencies, schedule_for

STAGES = Plan.pipeline({"cpu:1": ["a*", "top"], "cpu:2": ["b*", "model/*"]}, num_micro_batches=3)
HYBRID = Layout((Replica(share=1, stages=(Stage(device="cpu:3"),)), *STAGES.replicas))
SECOND = [(1, micro_batch) for micro_batch in range(3)]


def test_micro_batches_are_in_the_order_of_the_samples_on_the_devices_of_their_stages() -> None:
    assert Layout.of(dataclasses.replace(STAGES, recompute=("a*",))) == Layout(
        STAGES.replicas, ("a*",)
    )
    assert HYBRID.micro_batches == tuple(itertools.starmap(MicroBatch, [(0, 0), *SECOND]))
    for stages, device in (((0, 0), "CPU:1"), ((0, 1), "CPU:2")):
        devices = [HYBRID.device(micro_batch, stages)[-5:] for micro_batch in range(4)]
        assert devices == ["CPU:3", *[device] * 3]


def test_devices_alone_are_whole_replicas() -> None:
    layout = Layout.of_devices(["cpu:0", "cpu:2"])
    assert layout.micro_batches == (MicroBatch(0, 0), MicroBatch(1, 0))
    assert [layout.device(micro_batch, ()) for micro_batch in (0, 1)] == [
        "/device:CPU:0",
        "/device:CPU:2",
    ]
    assert not layout.is_scheduled
    assert layout.first_stages == (0, 0)


WHOLE = Replica(share=1, stages=(Stage(device="cpu:0"),))


@pytest.mark.parametrize(
    ("layout", "is_scheduled"),
    [
        (Layout((WHOLE, WHOLE)), False),
        (Layout((WHOLE,), ("a*",)), True),
        (Layout((WHOLE, dataclasses.replace(WHOLE, num_micro_batches=2))), True),
        (Layout(Plan.pipeline({"cpu:0": "a*", "cpu:1": "b*"}).replicas), True),
    ],
    ids=["whole", "recompute", "micro-batches", "stages"],
)
def test_what_is_cut(layout: Layout, is_scheduled: bool) -> None:
    assert layout.is_scheduled == is_scheduled


@pytest.mark.parametrize(
    ("path", "stages"),
    [
        ("a0", (0, 0)),
        ("b0/inner", (0, 1)),
        ("none", (0, None)),
        ("", (0, None)),
        # The outermost layer that a stage names decides.
        ("top/b0", (0, 0)),
        ("model/a0", (0, 1)),
        ("other/a0", (0, 0)),
    ],
)
def test_the_stage_of_a_layer(path: str, stages: tuple[int | None, ...]) -> None:
    assert HYBRID.stages_of(path) == stages


def test_a_layer_in_two_stages_is_refused() -> None:
    plan = Plan.pipeline({"cpu:0": ["first", "x*"], "cpu:1": ["*1", "last"]})
    layout = Layout.of(plan)
    assert layout.stages_of("x0") == (0,)
    with pytest.raises(EngineError, match=r"(?s)'x1' is in two stages, 0 and 1.*'x\*'.*'\*1'") as e:
        layout.stages_of("x1/inner")
    assert e.value.code == "ENG-041"


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("model/block/dense", "block", True),
        ("model/block/dense", "model/block", True),
        ("model/block/dense", "block/de*", True),
        ("model/block/dense", "blo", False),
        ("model/block/dense", "model/dense", False),
        ("model/block_10", "block_1", False),
        ("model/block_10", "block_1?", True),
    ],
)
def test_a_pattern_names_a_layer_or_one_around_it(path: str, pattern: str, expected: bool) -> None:
    assert matches(path, [pattern]) == expected
    assert parts_of_path("a/b/c") == ["a", "a/b", "a/b/c", "b", "b/c", "c"]


KINDS = ("forward", "backward")


def replica(num_stages: int, schedule: str = "1f1b", **more: int) -> Replica:
    stages = [Stage(device=f"cpu:{k}", layers=(f"{k}*",)) for k in range(num_stages)]
    return Replica(share=1, stages=tuple(stages), schedule=schedule, **more)  # type: ignore[arg-type]


def units_of(schedule: Schedule, num_stages: int) -> tuple[dict[Unit, Task], dict, dict]:
    """Return a unit for each task of a schedule, what each needs, and the turns."""

    def unit(task: Task) -> Unit:
        return Unit(KINDS.index(task.kind) * num_stages + task.stage, task.micro_batch)

    tasks = {unit(task): task for order in schedule.orders for task in order}
    before = {
        key: {unit(needed) for needed in dependencies(task, num_stages=num_stages)}
        for key, task in tasks.items()
    }
    turns = {
        unit(task): Turn(device, place, 0, KINDS.index(task.kind))
        for device, order in zip(schedule.devices, schedule.orders, strict=True)
        for place, task in enumerate(order)
    }
    return tasks, before, turns


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_every_device_follows_its_schedule(schedule: str, in_flight: int) -> None:
    made = schedule_for(replica(3, schedule, num_micro_batches=4, in_flight=in_flight))
    tasks, before, turns = units_of(made, 3)
    ordered = order_units(before, turns)
    by_device: dict[str, list[Task]] = defaultdict(list)
    for unit in ordered:
        by_device[turns[unit].device].append(tasks[unit])
    assert {name: tuple(order) for name, order in by_device.items()} == dict(
        zip(made.devices, made.orders, strict=True)
    )


@pytest.mark.parametrize(("num_micro_batches", "in_flight"), [(4, 1), (4, 2), (3, 3), (1, 1)])
def test_a_barrier_over_the_batch_does_not_deadlock(num_micro_batches: int, in_flight: int) -> None:
    """Forward passes up to a mean of the batch, the mean, the rest of them, backward passes."""
    micro_batches = range(num_micro_batches)
    made = schedule_for(replica(1, num_micro_batches=num_micro_batches, in_flight=in_flight))
    place = {(t.kind, t.micro_batch): k for k, t in enumerate(made.orders[0])}
    mean = Unit(1, None)
    before = {Unit(0, k): set() for k in micro_batches} | {
        mean: {Unit(0, k) for k in micro_batches}
    }
    before |= {Unit(2, k): {mean, Unit(0, k)} for k in micro_batches}
    before |= {Unit(3, k): {Unit(2, k)} for k in micro_batches}
    turns = {
        Unit(task, k): Turn("cpu:0", place[kind, k], 0, task)
        for task, kind in ((0, "forward"), (2, "forward"), (3, "backward"))
        for k in micro_batches
    }
    ordered = order_units(before, turns)
    assert ordered[: num_micro_batches + 1] == [*(Unit(0, k) for k in micro_batches), mean]
    # After it, the schedule again.
    rest = [(u.task, u.micro_batch) for u in ordered[num_micro_batches + 1 :]]
    expected = [(2 if t.kind == "forward" else 3, t.micro_batch) for t in made.orders[0]]
    assert rest == expected


@st.composite
def steps(draw: st.DrawFn) -> tuple[dict[Unit, set[Unit]], dict[Unit, Turn]]:
    """Draw tasks of parts and tasks that are computed once, in an order in which they can run."""
    num_tasks, num_micro_batches = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    once = draw(st.lists(st.booleans(), min_size=num_tasks, max_size=num_tasks))
    devices = draw(st.lists(st.sampled_from("xyz"), min_size=num_tasks, max_size=num_tasks))
    units = [
        [Unit(task, None)] if once[task] else [Unit(task, k) for k in range(num_micro_batches)]
        for task in range(num_tasks)
    ]
    before: dict[Unit, set[Unit]] = {unit: set() for of_task in units for unit in of_task}
    for earlier, later in itertools.combinations(range(num_tasks), 2):
        if not draw(st.booleans()):
            continue
        same_micro_batch = not once[earlier] and not once[later] and draw(st.booleans())
        for unit in units[later]:
            before[unit].update(
                [units[earlier][unit.micro_batch]] if same_micro_batch else units[earlier]
            )
    turns = {
        unit: Turn(devices[unit.task], draw(st.integers(0, 9)), draw(st.integers(0, 1)), unit.task)
        for unit in before
        if unit.micro_batch is not None
    }
    return before, turns


@settings(max_examples=150)
@given(steps())
def test_every_unit_comes_once_and_after_what_it_needs(
    drawn: tuple[dict[Unit, set[Unit]], dict[Unit, Turn]],
) -> None:
    """Whatever the places in the schedule are, sensible or not."""
    before, turns = drawn
    ordered = order_units(before, turns)
    assert sorted(ordered, key=str) == sorted(before, key=str)
    place = {unit: k for k, unit in enumerate(ordered)}
    assert all(place[needed] < place[unit] for unit in before for needed in before[unit])


@settings(max_examples=100)
@given(steps())
def test_places_that_can_be_kept_are_kept(
    drawn: tuple[dict[Unit, set[Unit]], dict[Unit, Turn]],
) -> None:
    """Without a barrier that contradicts them, a device takes its units by their places."""
    before, drawn_turns = drawn
    # Places in the order of the tasks contradict nothing.
    turns = {
        u: turn._replace(position=u.task, replica=u.micro_batch or 0)
        for u, turn in drawn_turns.items()
    }
    taken: dict[str, list[Turn]] = defaultdict(list)
    for unit in order_units(before, turns):
        if unit in turns:
            taken[turns[unit].device].append(turns[unit])
    assert all(list(numbers) == sorted(numbers) for numbers in taken.values())


def test_places_of_a_hybrid() -> None:
    """Each replica has its own schedule."""
    alone = Replica(share=1, num_micro_batches=2, stages=(Stage(device="cpu:2"),))
    layout = Layout((alone, replica(2, num_micro_batches=2, in_flight=2)))
    first, second = positions_in_schedule(layout, trains=True)
    assert first == {
        ("forward", 0, 0): 0, ("backward", 0, 0): 1, ("forward", 0, 1): 2, ("backward", 0, 1): 3,
    }  # fmt: skip
    assert second["forward", 0, 1] < second["backward", 0, 0]
    assert second["backward", 1, 0] < second["forward", 1, 1]
    for places in positions_in_schedule(layout, trains=False):
        assert {kind for kind, _, _ in places} == {"forward"}


def test_a_task_of_two_passes_begins_with_the_first() -> None:
    assert pass_of(["backward", "forward"]) == "forward"
    assert pass_of(["backward"]) == "backward"


def test_a_plan_of_two_stages_on_one_device_goes_back_and_forth() -> None:
    plan = Plan.pipeline([("cpu:0", "a*"), ("cpu:0", "b*")], num_micro_batches=2, in_flight=1)
    (places,) = positions_in_schedule(Layout.of(plan), trains=True)
    in_order = sorted(places, key=lambda item: places[item])
    assert in_order[:4] == [
        ("forward", 0, 0), ("forward", 1, 0), ("backward", 1, 0), ("backward", 0, 0),
    ]  # fmt: skip
