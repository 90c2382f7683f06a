"""Simulated steps: bounds that none may cross, timetables, memory, and the prediction."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings

from evener.clusters import cluster_named, datasheet_profile, model_named
from evener.plan import Plan
from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    assignment_of,
    by_machine,
    holders_of,
)
from evener.planner.prediction import predict, update_seconds
from evener.planner.step_time import span_seconds
from evener.profile import (
    Cluster,
    ClusterDevice,
    CostProfile,
    Curve,
    LayerCosts,
    LayerTimes,
    Machine,
    ModelCosts,
)
from evener.schedule import Task, timeline
from simulation.activities import Server
from simulation.cases import FREE, cases, link, pipelines, with_links
from simulation.passes import schedule_of
from simulation.simulation import Simulation, simulate, simulate_plan

ROUNDING = 1 + 1e-9


def compute_seconds(assignment: Assignment, profile: CostProfile) -> dict[int, float]:
    """Return what each device computes in a step, from the curves alone."""
    total = dict(update_seconds(assignment, profile))
    for replica in assignment.replicas:
        for span in replica.spans:
            passes = span_seconds(span, replica, assignment.recompute, profile)
            total[span.device] = total.get(span.device, 0.0) + (
                replica.num_micro_batches * sum(passes)
            )
    return total


@settings(max_examples=50)
@given(cases())
def test_no_step_is_faster_than_any_device_computes(case: tuple[Assignment, CostProfile]) -> None:
    assignment, profile = case
    step = simulate(assignment, profile)
    for device, seconds in compute_seconds(assignment, profile).items():
        assert step.step_seconds * ROUNDING >= seconds
        busy = step.busy_seconds.get(Server("compute", device), 0.0)
        assert busy == pytest.approx(seconds)


@settings(max_examples=50)
@given(cases(max_machines=1))
def test_no_step_is_faster_than_its_bytes_fit_through_the_links(
    case: tuple[Assignment, CostProfile],
) -> None:
    assignment, profile = case
    step = simulate(assignment, profile)
    layers, machine = profile.model.layers, profile.cluster.machines[0]
    holders = holders_of(assignment.replicas, len(layers))
    from_host = [0.0] * len(profile.cluster.devices)
    for device in range(len(profile.cluster.devices)):
        fetched = 0.0
        for layer, held_by, owner in zip(layers, holders, assignment.owners, strict=True):
            if device in held_by and owner == HOST_OWNER:
                from_host[device] += layer.weight_bytes
            elif device in held_by and owner != device:
                fetched += layer.weight_bytes
        assert step.step_seconds * ROUNDING >= machine.link.seconds(fetched)
        assert step.step_seconds * ROUNDING >= machine.host_link.seconds(from_host[device])
    if machine.shares_link:
        assert step.step_seconds * ROUNDING >= machine.host_link.seconds(sum(from_host))


@settings(max_examples=50)
@given(cases(host=False, rings=False))
def test_each_device_receives_the_weights_of_other_machines_by_the_network(
    case: tuple[Assignment, CostProfile],
) -> None:
    assignment, profile = case
    cluster, layers = profile.cluster, profile.model.layers
    step = simulate(assignment, profile)
    machines = [device.machine for device in cluster.devices]
    for machine in range(len(cluster.machines)):
        wanted = sum(
            layer.weight_bytes * sum(machines[device] == machine for device in held_by)
            for layer, held_by, owner in zip(
                layers, holders_of(assignment.replicas, len(layers)), assignment.owners, strict=True
            )
            if machines[owner] != machine
        )
        got = sum(
            transfer.num_bytes
            for transfer in step.transfers
            if transfer.what.startswith("weights of")
            and machines[transfer.target] == machine != machines[transfer.source]
        )
        assert got == wanted
        assert step.step_seconds * ROUNDING >= wanted / cluster.network.bytes_per_second


@settings(max_examples=50)
@given(cases(rings=False))
def test_as_many_bytes_of_gradients_leave_as_weights_arrive(
    case: tuple[Assignment, CostProfile],
) -> None:
    step = simulate(*case)
    weights = [transfer for transfer in step.transfers if transfer.what.startswith("weights of")]
    gradients = [
        transfer for transfer in step.transfers if transfer.what.startswith("gradients of")
    ]
    assert sorted(
        (transfer.source, transfer.target, transfer.num_bytes) for transfer in weights
    ) == sorted((transfer.target, transfer.source, transfer.num_bytes) for transfer in gradients)


@settings(max_examples=50)
@given(cases(rings=False))
def test_gradients_twice_as_large_as_weights(case: tuple[Assignment, CostProfile]) -> None:
    assignment, profile = case
    layers = tuple(
        dataclasses.replace(layer, other_gradient_bytes=layer.weight_bytes, update_bytes=100)
        for layer in profile.model.layers
    )
    profile = dataclasses.replace(profile, model=dataclasses.replace(profile.model, layers=layers))
    # Gradients arrive when those of the size of the weights do: the prediction takes the order of
    # the passes for that of the arrivals.
    profile = with_links(profile, factor=2)
    step = simulate(assignment, profile)
    moved = {
        what: sorted(
            transfer.num_bytes for transfer in step.transfers if transfer.what.startswith(what)
        )
        for what in ("weights of", "gradients of")
    }
    assert moved["gradients of"] == [2 * num_bytes for num_bytes in moved["weights of"]]
    predicted = predict(assignment, profile).memory
    for device, num_bytes in step.peak_bytes.items():
        assert num_bytes <= predicted[device].total * ROUNDING + 1


@settings(max_examples=50)
@given(cases(host=False))
def test_in_rings_each_device_and_each_machine_moves_its_part(
    case: tuple[Assignment, CostProfile],
) -> None:
    assignment, profile = case
    machine_of = [device.machine for device in profile.cluster.devices]
    inside, between = Counter[int](), Counter[int]()
    for layer, held_by, owner in zip(
        profile.model.layers,
        holders_of(assignment.replicas, len(assignment.owners)),
        assignment.owners,
        strict=True,
    ):
        if owner != EACH_MACHINE:
            continue
        machines = by_machine(held_by, profile.cluster)
        for machine, here in machines.items():
            between[machine] += 2 * layer.weight_bytes * (len(machines) - 1) / len(machines)
            for device in here:
                inside[device] += 2 * layer.weight_bytes * (len(here) - 1) / len(here)
    rings = {
        layer.name
        for layer, owner in zip(profile.model.layers, assignment.owners, strict=True)
        if owner == EACH_MACHINE
    }
    got_inside, got_between = Counter[int](), Counter[int]()
    for transfer in simulate(assignment, profile).transfers:
        if (
            not transfer.what.startswith(("weights of", "gradients of"))
            or transfer.what.split()[-1] not in rings
        ):
            continue
        if machine_of[transfer.source] == machine_of[transfer.target]:
            got_inside[transfer.source] += transfer.num_bytes
        else:
            got_between[machine_of[transfer.target]] += transfer.num_bytes
    assert {k: v for k, v in got_inside.items() if v} == pytest.approx(
        {k: v for k, v in inside.items() if v}
    )
    assert {k: v for k, v in got_between.items() if v} == pytest.approx(
        {k: v for k, v in between.items() if v}
    )


@settings(max_examples=50)
@given(pipelines())
def test_where_transfers_are_free_a_pipeline_has_the_timetable_of_its_schedule(
    case: tuple[Assignment, CostProfile],
) -> None:
    assignment, profile = case
    profile = with_links(profile, factor=math.inf)
    replica = assignment.replicas[0]
    passes = [span_seconds(span, replica, assignment.recompute, profile) for span in replica.spans]

    def seconds(task: Task) -> float:
        forward, backward = passes[task.stage]
        return forward if task.kind == "forward" else backward

    wanted = timeline(schedule_of(replica), seconds)
    step = simulate(assignment, profile)
    for device, events in zip([s.device for s in replica.spans], wanted.events, strict=True):
        computed = [event for event in step.devices[device] if event.kind != "update"]
        # A device with one call of both passes updates a layer as soon as its gradient is there.
        between = sum(
            event.end_seconds - event.begin_seconds
            for event in step.devices[device]
            if event.kind == "update" and event.end_seconds <= computed[-1].begin_seconds
        )
        delay = computed[-1].end_seconds - events[-1].end_seconds
        assert delay == pytest.approx(0.0, abs=1e-9) or delay == pytest.approx(between)
        assert computed[0].begin_seconds == pytest.approx(events[0].begin_seconds)
    updates = update_seconds(assignment, profile)
    last = max(
        events[-1].end_seconds + updates[span.device]
        for span, events in zip(replica.spans, wanted.events, strict=True)
    )
    assert step.step_seconds == pytest.approx(last)


@settings(max_examples=50)
@given(pipelines())
def test_a_pipeline_is_never_slower_on_faster_links(case: tuple[Assignment, CostProfile]) -> None:
    assignment, profile = case
    steps = [
        simulate(assignment, with_links(profile, factor=factor)).step_seconds
        for factor in (0.1, 0.5, 1.0, 3.0, math.inf)
    ]
    assert all(slower * ROUNDING >= faster for slower, faster in pairwise(steps))


@settings(max_examples=50)
@given(cases())
def test_no_step_is_faster_than_with_free_transfers_nor_gains_by_slower_ones(
    case: tuple[Assignment, CostProfile],
) -> None:
    assignment, profile = case
    slow, step, free = (
        simulate(assignment, with_links(profile, factor=factor)).step_seconds
        for factor in (0.5, 1.0, math.inf)
    )
    assert step * ROUNDING >= free
    # Where first come is first served, something else that comes earlier can be in the way.
    assert step <= slow * 1.03


@settings(max_examples=50)
@given(cases())
def test_no_device_needs_more_memory_than_predicted(case: tuple[Assignment, CostProfile]) -> None:
    assignment, profile = case
    predicted = predict(assignment, profile).memory
    simulated = simulate(assignment, profile).peak_bytes
    assert set(simulated) <= set(predicted)
    for device, num_bytes in simulated.items():
        assert num_bytes <= predicted[device].total * ROUNDING + 1


@settings(max_examples=50)
@given(cases())
def test_at_the_end_of_a_step_only_variables_are_in_memory(
    case: tuple[Assignment, CostProfile],
) -> None:
    assignment, profile = case
    step = simulate(assignment, profile)
    owned = {device: 0.0 for device in step.memory}
    held_by = holders_of(assignment.replicas, len(profile.model.layers))
    for layer, owner, holders in zip(profile.model.layers, assignment.owners, held_by, strict=True):
        parts = {owner: 1.0}
        if owner == EACH_MACHINE:
            machines = by_machine(holders, profile.cluster).values()
            parts = {device: 1 / len(here) for here in machines for device in here}
        for device, part in parts.items():
            owned[device] = owned.get(device, 0.0) + layer.owned_bytes * part
    for device, points in step.memory.items():
        assert points[-1].num_bytes == pytest.approx(owned[device], abs=1.0)
        assert min(point.num_bytes for point in points) >= owned[device] - 1.0
        assert all(point.seconds < other.seconds for point, other in pairwise(points))


@settings(max_examples=20)
@given(cases())
def test_the_same_step_is_simulated_the_same_way(case: tuple[Assignment, CostProfile]) -> None:
    assert simulate(*case) == simulate(*case)


@settings(max_examples=100)
@given(cases())
def test_devices_and_connections_do_one_thing_at_a_time(
    case: tuple[Assignment, CostProfile],
) -> None:
    step = simulate(*case)
    for events in step.devices:
        assert all(
            event.end_seconds <= other.begin_seconds * ROUNDING for event, other in pairwise(events)
        )
    assert all(seconds <= step.step_seconds * ROUNDING for seconds in step.busy_seconds.values())


def two_devices(
    *, weight_bytes: int, boundary_bytes: float = 0.0, machine: Machine | None = None
) -> CostProfile:
    """Two layers on two equal devices; forward takes 1 s, backward 2 s, an update 0.5 s."""
    times = LayerTimes(forward=Curve(((1, 1.0),)), backward=Curve(((1, 2.0),)), update_seconds=0.5)
    return CostProfile(
        model=ModelCosts(
            name="two",
            layers=tuple(
                LayerCosts(
                    name=name,
                    weight_bytes=weight_bytes,
                    boundary_bytes=boundary_bytes,
                    activation_bytes=7.0,
                )
                for name in ("a", "b")
            ),
        ),
        cluster=Cluster(
            devices=tuple(ClusterDevice(name=f"gpu:{k}", type="one") for k in range(2)),
            machines=(machine or Machine(link=link(10.0)),),
        ),
        times={"one": (times, times)},
    )


def beside_each_other(*, samples: int = 1, num_micro_batches: int = 1) -> Assignment:
    return Assignment(
        replicas=tuple(
            ReplicaAssignment(
                samples=samples, spans=(Span(k, 0, 2),), num_micro_batches=num_micro_batches
            )
            for k in range(2)
        ),
        owners=(0, 1),
        recompute=(False, False),
    )


def spans_of(step: Simulation, device: int) -> list[tuple[str, float, float]]:
    return [(event.kind, event.begin_seconds, event.end_seconds) for event in step.devices[device]]


def test_data_parallel_with_sharded_owners_by_hand() -> None:
    # 15 bytes at 10 per second: 1.5 s each, both directions at once.
    step = simulate(beside_each_other(), two_devices(weight_bytes=15))
    assert spans_of(step, 0) == [
        ("forward", 0.0, 1.0),
        # b is owned by gpu:1, and on its way until then.
        ("forward", 1.5, 2.5),
        ("backward", 2.5, 4.5),
        ("backward", 4.5, 6.5),
        # The gradient of a leaves gpu:1 at 7.5.
        ("update", 9.0, 9.5),
    ]
    assert spans_of(step, 1) == [
        ("forward", 1.5, 2.5),
        ("forward", 2.5, 3.5),
        ("backward", 3.5, 5.5),
        ("backward", 5.5, 7.5),
        ("update", 7.5, 8.0),
    ]
    assert step.step_seconds == 9.5


def test_memory_of_data_parallel_by_hand() -> None:
    step = simulate(beside_each_other(), two_devices(weight_bytes=15))
    assert step.memory[0] == (
        # a, which it owns; b, which arrives; activations of a.
        (0.0, 15 + 15 + 7),
        (1.5, 15 + 15 + 7 + 7),
        # The gradient of b.
        (2.5, 15 + 15 + 15 + 7 + 7),
        # That of a; b and its activations are needed no more.
        (4.5, 15 + 15 + 15 + 7),
        # The gradient of b is with its owner.
        (6.0, 15 + 15 + 7),
        (6.5, 15 + 15),
        # That of a arrives from the other device, and stays until the update.
        (7.5, 15 + 15 + 15),
        (9.5, 15),
    )


def test_recomputed_layers_keep_what_they_read_and_take_longer_backwards() -> None:
    profile = two_devices(weight_bytes=0, boundary_bytes=2.0)
    assignment = dataclasses.replace(beside_each_other(), recompute=(False, True))
    step = simulate(assignment, profile)
    # b keeps the 2 bytes of a's result, and has its own activations while it computes.
    assert step.memory[0] == ((0.0, 7.0), (1.0, 7 + 2 + 7), (5.0, 7.0), (7.0, 0.0))


def test_later_micro_batches_have_a_gradient_beside_the_sum() -> None:
    profile = two_devices(weight_bytes=15)
    alone = Assignment(
        replicas=(ReplicaAssignment(samples=2, spans=(Span(0, 0, 2),), num_micro_batches=2),),
        owners=(0, 0),
        recompute=(False, False),
    )
    # Both layers, the sums of both gradients, a gradient, activations.
    assert simulate(alone, profile).peak_bytes[0] == 30 + 30 + 15 + 14


def test_a_pipeline_by_hand() -> None:
    profile = two_devices(weight_bytes=15, boundary_bytes=5.0)
    replica = ReplicaAssignment(
        samples=2, spans=(Span(0, 0, 1), Span(1, 1, 2)), num_micro_batches=2, in_flight=2
    )
    assignment = Assignment(replicas=(replica,), owners=(0, 1), recompute=(False, False))
    step = simulate(assignment, profile)
    assert spans_of(step, 0) == [
        ("forward", 0.0, 1.0),
        ("forward", 1.0, 2.0),
        ("backward", 5.0, 7.0),
        ("backward", 8.0, 10.0),
        ("update", 10.0, 10.5),
    ]
    assert spans_of(step, 1) == [
        ("forward", 1.5, 2.5),
        ("backward", 2.5, 4.5),
        ("forward", 4.5, 5.5),
        ("backward", 5.5, 7.5),
        ("update", 7.5, 8.0),
    ]


def test_transfers_that_share_a_bus_wait_for_each_other() -> None:
    alone = simulate(beside_each_other(), two_devices(weight_bytes=40))
    machine = Machine(link=link(10.0), shares_link=True)
    shared = simulate(beside_each_other(), two_devices(weight_bytes=40, machine=machine))
    weights = [transfer for transfer in shared.transfers if transfer.what.startswith("weights")]
    assert [transfer.end_seconds for transfer in alone.transfers[:2]] == [4.0, 4.0]
    assert [transfer.end_seconds for transfer in weights] == [4.0, 8.0]


def test_weights_on_the_host_come_from_there_and_are_updated_there() -> None:
    # Two sums of 20 bytes are read and one is written, 0.5 s; an update reads 20 bytes of
    # gradients, and reads and writes 20 of weights: 0.5 s.
    machine = Machine(link=FREE, host_link=link(10.0), host_update_bytes_per_second=120.0)
    profile = two_devices(weight_bytes=20, machine=machine)
    assignment = dataclasses.replace(beside_each_other(), owners=(HOST_OWNER, HOST_OWNER))
    step = simulate(assignment, profile)
    # Each device has a link of its own: a after 2 s, b after 4 s; then b's and a's gradients.
    assert spans_of(step, 0)[:2] == [("forward", 2.0, 3.0), ("forward", 4.0, 5.0)]
    # a's gradients leave after 9 s, and the host updates one layer after the other.
    assert step.step_seconds == pytest.approx(9.0 + 2.0 + 0.5 + 0.5)
    assert step.peak_bytes[HOST_OWNER] > 40


def test_activations_are_in_memory_from_forward_to_backward() -> None:
    profile = two_devices(weight_bytes=0)
    step = simulate(beside_each_other(samples=2), profile)
    assert step.peak_bytes[0] == 2 * (7.0 + 7.0)
    fewer = simulate(beside_each_other(samples=2, num_micro_batches=2), profile)
    assert fewer.peak_bytes[0] == 7.0 + 7.0


def test_a_plan_is_simulated_like_its_assignment() -> None:
    profile = datasheet_profile(model_named("resnet-50"), cluster_named("rtx3090-rtx3060"))
    plan = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3, 1])
    assignment = assignment_of(plan, profile.model, profile.cluster, 64)
    assert simulate_plan(plan, profile, 64) == simulate(assignment, profile)


def test_the_overhead_of_a_step_is_added_to_it() -> None:
    profile = two_devices(weight_bytes=15)
    slower = dataclasses.replace(profile, step_overhead_seconds=0.25)
    step, other = (simulate(beside_each_other(), costs) for costs in (profile, slower))
    assert other.step_seconds == step.step_seconds + 0.25


@pytest.mark.parametrize("cluster", ["a100-8", "rtx3090-rtx3060", "v100-8-p100-8"])
def test_the_prediction_is_near_for_published_models_without_accumulation(cluster: str) -> None:
    off: list[float] = []
    for model, batch in (("bert-large", 64), ("resnet-50", 512), ("gpt3-1.3b", 32)):
        profile = datasheet_profile(model_named(model), cluster_named(cluster))
        names = [device.name for device in profile.cluster.devices]
        plan = Plan.data_parallel(names)
        assignment = assignment_of(plan, profile.model, profile.cluster, batch)
        simulated = simulate(assignment, profile).step_seconds
        off.append(simulated / predict(assignment, profile).step_seconds - 1)
    assert statistics.median(map(abs, off)) < 0.05
    assert max(map(abs, off)) < 0.25
