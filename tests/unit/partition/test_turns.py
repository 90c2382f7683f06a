"""The order of calls on a device, fetched weights, sums of gradients, and seconds of tasks."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given

from evener.partition import build, layout
from evener.partition.build import is_added_inside
from evener.partition.emit import Turns
from evener.partition.tasks import Place, StepTask
from evener.partition.times import seconds_within
from evener.plan import Plan
from unit.partition.steps import NAMES, WIDTH, ancestors, calls, stack, step_of, waits_for

FIRST, SECOND = Place("parts", (0,)), Place("parts", (1,))
DEVICE, OWNER = "/device:CPU:1", "/device:CPU:0"


def two(num_micro_batches: int = 4, in_flight: int = 2, **how: Any) -> Plan:
    how = {"num_micro_batches": num_micro_batches, "in_flight": in_flight, **how}
    return Plan.pipeline({"cpu:1": "a*", "cpu:2": "b*"}, **how)


def on(device: str, operations: list[Any]) -> list[Any]:
    return [op for op in operations if op.device.endswith(device)]


@pytest.mark.parametrize("in_flight", [1, 2, 4])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_calls_on_a_device_wait_for_each_other(schedule: str, in_flight: int) -> None:
    """So no more micro-batches are alive than the schedule allows."""
    made = calls(step_of(two(in_flight=in_flight, schedule=schedule)).graph())
    for device in ("CPU:1", "CPU:2"):
        in_order = on(device, made)
        assert len(in_order) >= 4
        for earlier, later in itertools.pairwise(in_order):
            assert earlier in ancestors(later), (earlier.name, later.name)


def test_calls_are_in_the_order_of_the_schedule() -> None:
    """One forward, one backward: F0 F1 B0 F2 B1 F3 B2 B3 in the first of two stages."""
    step = step_of(two())
    forward, backward = step.task("a0", "Tanh"), step.task("a0", "TanhGrad", backward=True)
    names = {step.partition.tasks.index(forward): "F", step.partition.tasks.index(backward): "B"}
    units = [unit for unit in step.partitioned.units if unit.task in names]
    order = " ".join(f"{names[unit.task]}{unit.micro_batch}" for unit in units)
    assert order == "F0 F1 B0 F2 B1 F3 B2 B3"


def test_more_in_flight_waits_for_no_gradient() -> None:
    """The last forward pass of the first stage needs no backward pass."""
    step = step_of(two(in_flight=4, schedule="gpipe"))
    units = [unit for unit in step.partitioned.units if unit.micro_batch is not None]
    by_task: dict[int, list[Any]] = {}
    for unit, call in zip(units, calls(step.graph()), strict=True):
        by_task.setdefault(unit.task, []).append(call)
    tasks = step.partition.tasks
    forward = by_task[tasks.index(step.task("a0", "Tanh"))]
    backward = by_task[tasks.index(step.task("a0", "TanhGrad", backward=True))]
    assert len(forward) == len(backward) == 4
    assert not any(ancestors(op) & set(backward) for op in forward)


def test_devices_that_are_not_cut_wait_for_nobody() -> None:
    step = step_of(Plan.data_parallel(["cpu:1", "cpu:2"]))
    first, second, *_ = calls(step.graph())
    assert (first.device, second.device) == ("/device:CPU:1", "/device:CPU:2")
    assert first not in ancestors(second) and second not in ancestors(first)
    assert not any(is_added_inside(step.partition, t) for t in step.partition.summed)


def test_a_replica_waits_for_no_other_one() -> None:
    plan = two(num_micro_batches=2)
    other = Plan.pipeline({"cpu:3": "a*", "cpu:4": "b*"}, num_micro_batches=2)
    both = Plan(devices=(*plan.devices, *other.devices), replicas=(*plan.replicas, *other.replicas))
    made = calls(step_of(both).graph())
    assert not ancestors(on("CPU:3", made)[0]) & set(on("CPU:1", made))


def on_host(**how: Any) -> Plan:
    """Return a plan of a stage for each layer, on one device; all weights are on the host."""
    return Plan.pipeline([("cpu:1", name) for name in NAMES], owners={"*": "host"}, **how)


def fetches(call: Any) -> set[Any]:
    """Return the fetches of weights on their owner that a call was given."""
    given = (tensor.op for tensor in call.inputs)
    return {op for op in given if op.type == "Identity" and op.device.endswith("CPU:0")}


def weights_on_host(plan: Plan) -> list[Any]:
    """Return the calls of a step on one device, whose weights the host owns."""
    with tf.device("CPU:0"):
        model = stack()
    return on("CPU:1", calls(step_of(plan, model).graph()))


def test_weights_of_a_later_turn_are_fetched_when_the_turn_before_the_last_has_ended() -> None:
    """Fetched weights at most of two turns: of the turn that is computed, and of the next one."""
    made = weights_on_host(on_host())
    # Forward through all; both passes of the last stage are one call; the loss comes last.
    *forwards, last = made[:4]
    backwards = made[4:7]
    turns = [*forwards, last, *backwards]
    fetched = [fetches(call) for call in turns]
    assert fetched[:2] == [set(), set()]  # They begin at once.
    assert all(fetched[k] for k in range(2, 6))
    for number in range(2, 6):
        for fetch in fetched[number]:
            before = set(fetch.control_inputs)
            assert before == {turns[number - 2]}, (number, fetch.name)
    # Every turn has fetched weights of its own, those of a stage it was in before too.
    flat = [fetch for of_turn in fetched for fetch in of_turn]
    assert len(flat) == len(set(flat))


def test_weights_are_fetched_from_this_host_for_a_device_of_another_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name without a machine, inside of the scope of a device of one, means that machine's."""
    elsewhere = "/job:elsewhere/task:0/device:CPU:0"
    monkeypatch.setattr(layout, "tf_device", lambda name: elsewhere)
    with tf.device("CPU:0"):
        model = stack()
    made = calls(step_of(on_host(), model).graph())
    assert {call.device for call in made} == {elsewhere}
    fetched = {t.op for call in made for t in call.inputs if t.op.type == "Identity"}
    assert fetched
    assert not [op.name for op in fetched if "elsewhere" in op.device]


def test_micro_batches_of_a_turn_share_its_fetched_weights() -> None:
    plan = on_host(num_micro_batches=2, schedule="gpipe", in_flight=2)
    fetched = [fetches(call) for call in weights_on_host(plan)]
    by_fetch = {read: [k for k, of_call in enumerate(fetched) if read in of_call]
                for of_call in fetched for read in of_call}  # fmt: skip
    assert by_fetch
    for of_calls in by_fetch.values():
        # Neighbours: nothing of another stage in between.
        assert of_calls == list(range(of_calls[0], of_calls[-1] + 1))


def test_weights_on_the_device_are_not_fetched() -> None:
    with tf.device("CPU:1"):
        model = stack()
    plan = Plan.pipeline([("cpu:1", name) for name in NAMES])
    made = on("CPU:1", calls(step_of(plan, model).graph()))
    identities = {t.op for call in made for t in call.inputs if t.op.type == "Identity"}
    assert not identities


def task(place: Place) -> StepTask:
    return StepTask(place, 0)


def test_turns_alone() -> None:
    """Control dependencies of each call, and of the fetches of weights of each turn."""
    with tf.Graph().as_default():
        weight = tf.zeros([2])
        done, copies = [], []
        turns = Turns()
        for place in (FIRST, FIRST, SECOND, FIRST, SECOND):
            before = turns.begin(DEVICE, task(place))
            assert before == done[-1:]
            copy = turns.fetch(DEVICE, weight, OWNER)
            assert turns.fetch(DEVICE, weight, OWNER) is copy
            copies.append(copy)
            done.append(tf.no_op())
            turns.end(DEVICE, done[-1:])
        assert copies[0] is copies[1] is copies[2] is weight
        assert [copy.op.control_inputs for copy in copies[3:]] == [[done[1]], [done[2]]]
        assert {copy.device for copy in copies[3:]} == {OWNER}
        # Another device begins by itself.
        assert turns.begin("/device:CPU:2", task(FIRST)) == []


def test_a_call_without_results_is_passed_over() -> None:
    with tf.Graph().as_default():
        turns, done = Turns(), tf.no_op()
        turns.begin(DEVICE, task(FIRST))
        turns.end(DEVICE, [done])
        turns.begin(DEVICE, task(FIRST))
        turns.end(DEVICE, [])
        assert turns.begin(DEVICE, task(FIRST)) == [done]


def gradients_of(step: Any) -> tuple[list[Any], list[Any]]:
    """Return the partial gradients of kernels and of biases."""
    summed = [t for t in step.partition.summed if t.shape]
    kernels = [t for t in summed if t.shape == (WIDTH, WIDTH)]
    biases = [t for t in summed if t.shape == (WIDTH,)]
    assert len(summed) == 2 * len(kernels) == 2 * len(biases) == 2 * len(NAMES)
    return kernels, biases


def additions(graph: Any) -> list[Any]:
    """Return the sums of gradients behind calls."""
    added = (op for op in graph.get_operations() if op.type == "AddN")
    return [op for op in added if op.outputs[0].dtype.is_floating]


def test_small_gradients_are_added_up_inside_of_the_calls() -> None:
    step = step_of(two())
    kernels, biases = gradients_of(step)
    assert all(is_added_inside(step.partition, t) for t in (*kernels, *biases))
    assert not additions(step.graph())


def test_large_gradients_are_added_up_behind_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device of the call, and the next call waits: the sum and one more are alive."""
    monkeypatch.setattr(build, "LARGE", WIDTH * WIDTH * 4)  # the kernels, and not the biases
    step = step_of(two())
    kernels, biases = gradients_of(step)
    assert not any(is_added_inside(step.partition, t) for t in kernels)
    assert all(is_added_inside(step.partition, t) for t in biases)
    graph = step.graph()
    made = calls(graph)
    for device in ("CPU:1", "CPU:2"):
        of_device = on(device, made)
        added = on(device, additions(graph))
        assert len(added) == 2 * 3  # two kernels, the first micro-batch is not added
        for addition in added:
            # Of the calls that it adds up, the later one: the earlier one began the sum.
            last = max(of_device.index(call) for call in waits_for(addition) & set(of_device))
            after = of_device[last + 1 :]
            assert not after or addition in waits_for(after[0])


@pytest.mark.parametrize("large", [0, WIDTH * WIDTH * 4, 1 << 18])
def test_sums_are_those_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    """Also with micro-batches that have no samples."""
    monkeypatch.setattr(build, "LARGE", large)
    x = tf.random.stateless_normal([3, WIDTH], [1, 2])
    weights = []
    for plan in (Plan.data_parallel(["cpu:1"]), two(num_micro_batches=5, in_flight=3)):
        keras.utils.set_random_seed(1)
        model = stack()
        step = step_of(plan, model)
        for _ in range(3):
            step.run([3], x)
        weights.append(model.get_weights())
    for wanted, got in zip(*weights, strict=True):
        tf.debugging.assert_near(wanted, got, rtol=1e-5, atol=1e-6)


def test_what_is_needed_in_parts_is_not_added_inside() -> None:
    """A partial sum of which a part is needed by itself has to stay one."""
    step = step_of(two())
    for task in step.partition.tasks:
        for tensor in task.fetches:
            if is_added_inside(step.partition, tensor):
                readers = [n for n in step.partition.task_of if tensor in n.inputs]
                assert not any(step.partition.task_of[n].is_parts for n in readers)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=8))
@example([(1, 3), (2, 1)])
@example([(2, 1), (1, 3)])
@example([(1, 2), (2, 3), (4, 2), (8, 1)])
def test_seconds_of_tasks_that_overlap_count_once(spans: list[tuple[int, int]]) -> None:
    """Spans by their beginning and length, in the order in which tasks end or in another one."""
    seconds = np.zeros(80, bool)
    for begin, length in spans:
        seconds[begin : begin + length] = True
    ends = [(float(begin), float(begin + length)) for begin, length in spans]
    found = seconds_within([tuple(tf.constant(x, tf.float64) for x in span) for span in ends])
    assert float(found) == pytest.approx(seconds.sum())
