"""The time of a step, by hand: a sample takes 1 + 2 s forward and 2 + 4 s backward."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.plan import (
    Plan,
    Replica,
    ScheduleName,
    Stage,
)
from evener.planner.assignment import EACH_MACHINE, HOST_OWNER, ReplicaAssignment, Span
from evener.planner.prediction import predict, predict_plan, update_seconds
from evener.planner.step_time import span_seconds
from evener.profile import CostProfile, Curve
from evener.schedule import (
    Task,
    schedule_for,
    timeline,
)
from unit.planner.by_hand import FREE, assigned, cluster_of, profile_of, whole


def test_data_parallel_on_free_links() -> None:
    profile = profile_of(cluster_of(2, link=FREE), overhead=0.125)
    found = predict(assigned(whole(0), whole(1, samples=1), owners=(0, 1)), profile)
    assert found.step_seconds == 2 * 9 + 0.5 + 0.125
    slow, fast = found.replicas
    assert found.slowest == slow
    assert (slow.compute_seconds, slow.bubble_seconds, slow.communication_seconds) == (18, 0, 0)
    assert (slow.update_seconds, fast.update_seconds) == (0.5, 0.25)
    assert slow.busy_seconds == (18,)
    assert found.timelines == (None, None)


def with_times(profile: CostProfile, **changed: Any) -> CostProfile:
    """Return a profile in which the times of all layers have other fields."""
    times = {
        name: tuple(dataclasses.replace(layer, **changed) for layer in of_type)
        for name, of_type in profile.times.items()
    }
    return dataclasses.replace(profile, times=times)


def test_what_computation_does_not_hide_of_weights_and_gradients_is_added() -> None:
    # Weights and gradients travel 10.5 s; a forward pass takes 6 s, a backward pass 12 s.
    replicas = whole(0), whole(1)
    found = predict(assigned(*replicas, owners=(0, 1)), profile_of(cluster_of(2))).slowest
    assert found.communication_seconds == 10.5 - 6
    assert found.seconds == 18 + 4.5 + 0.5


def test_only_the_first_and_the_last_micro_batch_hide_transfers() -> None:
    replicas = whole(0, num_micro_batches=2), whole(1, num_micro_batches=2)
    found = predict(assigned(*replicas, owners=(0, 1)), profile_of(cluster_of(2))).slowest
    assert found.communication_seconds == (10.5 - 3) + (10.5 - 6)


def test_a_ring_between_machines_delays_gradients_alone() -> None:
    replicas = whole(0), whole(1)
    owners = (EACH_MACHINE, EACH_MACHINE)
    found = predict(assigned(*replicas, owners=owners), profile_of(cluster_of(1, 1))).slowest
    assert found.communication_seconds == 41 - 12


def test_all_micro_batches_but_the_first_add_gradients_up() -> None:
    profile = with_times(profile_of(cluster_of(1)), accumulate_seconds=0.5)
    once = predict(assigned(whole(0), owners=(0, 0)), profile).slowest
    twice = predict(assigned(whole(0, num_micro_batches=2), owners=(0, 0)), profile).slowest
    # Two layers, one more micro-batch.
    assert twice.compute_seconds == once.compute_seconds + 2 * 0.5


def test_recomputed_layers_run_forward_twice() -> None:
    profile = profile_of(cluster_of(1))
    found = predict(assigned(whole(0), owners=(0, 0), recompute=True), profile)
    assert found.slowest.compute_seconds == 18 + 2 * 2


@pytest.mark.parametrize(("recompute", "live"), [(False, 1), (True, 3)])
def test_one_stage_keeps_several_micro_batches_only_to_recompute(
    recompute: bool, live: int
) -> None:
    replica = whole(0, samples=4, num_micro_batches=4, in_flight=3)
    found = predict(
        assigned(replica, owners=(0, 0), recompute=recompute), profile_of(cluster_of(1))
    )
    # Samples of 1 byte are there from the begin.
    # In one call, those of the second layer are gone in the backward pass of the first.
    assert found.memory[0].activations == live * (6 if recompute else 4) + 4


def test_updates_of_hosts_and_of_machines() -> None:
    profile = profile_of(cluster_of(1, 2))
    replicas = [whole(k) for k in range(3)]
    shared = assigned(*replicas, owners=(EACH_MACHINE, EACH_MACHINE))
    assert update_seconds(shared, profile) == {0: 0.75, 1: 0.375, 2: 0.375}
    # 2 x (310 + 180) bytes of variables and 160 of gradients, at 1140 per second; before that,
    # three sums of 160 bytes are read and one is written.
    host = assigned(*replicas, owners=(HOST_OWNER, HOST_OWNER))
    took = 1.0 + 4 * 160 / 1140
    assert update_seconds(host, profile) == pytest.approx({HOST_OWNER: took})
    found = predict(host, profile)
    assert [replica.update_seconds for replica in found.replicas] == pytest.approx([took] * 3)


def test_an_owner_adds_up_what_the_other_devices_send() -> None:
    profile = with_times(profile_of(cluster_of(3)), accumulate_seconds=0.5)
    replicas = [whole(k) for k in range(3)]
    found = update_seconds(assigned(*replicas, owners=(0, 1)), profile)
    assert found == {0: 0.5 + 2 * 0.5, 1: 0.25 + 2 * 0.5}
    # Of one sum, nothing is added up.
    alone = update_seconds(assigned(whole(0), owners=(0, 1)), profile)
    assert alone == {0: 0.5, 1: 0.25}


def test_passes_are_two_calls_in_all_stages_but_the_last() -> None:
    separate = with_times(profile_of(cluster_of(2)), backward_separate=Curve(((1, 10.0),)))
    first, last = Span(0, 0, 1), Span(1, 1, 2)
    replica = ReplicaAssignment(samples=1, spans=(first, last))
    nothing, some = (False, False), (False, True)
    assert span_seconds(first, replica, nothing, separate) == (1.0, 10.0)
    assert span_seconds(last, replica, nothing, separate) == (2.0, 4.0)
    # Where anything is computed again, no two passes are one call; what is, is in the backward one.
    assert span_seconds(first, replica, some, separate) == (1.0, 10.0)
    assert span_seconds(last, replica, some, separate) == (2.0, 4.0 + 2.0)
    assert span_seconds(Span(0, 0, 2), whole(0, samples=1), nothing, separate) == (3.0, 6.0)


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from(["1f1b", "gpipe"]),
    st.booleans(),
)
def test_a_pipeline_takes_as_long_as_its_timetable(
    num_micro_batches: int, in_flight: int, schedule: ScheduleName, is_free: bool
) -> None:
    in_flight = min(in_flight, num_micro_batches)
    profile = profile_of(cluster_of(2, link=FREE) if is_free else cluster_of(2))
    replica = ReplicaAssignment(
        samples=2 * num_micro_batches,
        spans=(Span(0, 0, 1), Span(1, 1, 2)),
        num_micro_batches=num_micro_batches,
        in_flight=in_flight,
        schedule=schedule,
    )
    stages = tuple(Stage(device=f"gpu:{k}", layers=(f"{k}",)) for k in range(2))
    wanted = timeline(
        schedule_for(
            Replica(
                share=1,
                stages=stages,
                num_micro_batches=num_micro_batches,
                in_flight=in_flight,
                schedule=schedule,
            )
        ),
        lambda task: pass_seconds(task, schedule),
        # 2 bytes for each of 2 samples.
        transfer=lambda task, needed: (
            0.0 if is_free or task.stage == needed.stage else 4 / 10 + 0.5
        ),
    )
    found = predict(assigned(replica, owners=(0, 1)), profile)
    assert found.step_seconds == pytest.approx(wanted.makespan + 0.5)
    assert found.slowest.compute_seconds == 12.0 * num_micro_batches
    assert found.timelines[0] is not None
    assert found.timelines[0].peak_live == wanted.peak_live


def pass_seconds(task: Task, schedule: str) -> float:
    """Return the seconds of a pass of 2 samples."""
    forward = 2.0 * (task.stage + 1)
    return forward if task.kind == "forward" else 2 * forward


def test_replicas_that_are_alike_are_predicted_alike() -> None:
    profile = profile_of(cluster_of(3, link=FREE))
    found = predict(assigned(*(whole(k) for k in range(3)), owners=(0, 1)), profile)
    # They differ by what they own.
    assert [replica.update_seconds for replica in found.replicas] == [0.5, 0.25, 0.0]
    assert len({dataclasses.replace(replica, update_seconds=0) for replica in found.replicas}) == 1


def test_a_plan_is_predicted_like_its_assignment() -> None:
    profile = profile_of(cluster_of(2, link=FREE))
    plan = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[2, 1])
    found = predict_plan(plan, profile, 3)
    assert found == predict(assigned(whole(0), whole(1, samples=1), owners=(0, 1)), profile)
