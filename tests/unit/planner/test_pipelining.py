"""Zero-bubble schedules and interleaved stages: where they win, and what they need."""

from __future__ import annotations

import dataclasses

import pytest

from evener.plan import Plan
from evener.planner import Choices, plan_profile, search_plan
from evener.planner.assignment import Assignment, ReplicaAssignment, Span, spread_owners
from evener.planner.candidates import is_interleaved
from evener.planner.planning import describe
from evener.planner.prediction import predict
from evener.planner.refinement import interleaved
from evener.profile import CostProfile, Link
from evener.report.planned import time_lines
from evener.schedule import schedule_for, timeline
from unit.planner.profiles import MIB, cluster_of, model_of, times_of

SECONDS = [1e-3] * 8
ONLY_1F1B = Choices(schedules=(), most_rounds=1)
ZERO_BUBBLE = Choices(most_rounds=1)
INTERLEAVED = Choices(schedules=())


def profile_of(
    num_devices: int = 2, *, weight_bytes: int = 64 * MIB, memory: int | None = None
) -> CostProfile:
    """Return devices whose links are too slow for gradients of weights, and not for activations."""
    return CostProfile(
        model=model_of(SECONDS, weight_bytes=weight_bytes, activation_bytes=1024.0),
        cluster=cluster_of(
            ["one"] * num_devices, [memory] * num_devices, Link(bytes_per_second=1e9)
        ),
        times={"one": times_of(SECONDS, slowness=1.0, overhead=1e-4)},
    )


@pytest.mark.parametrize("num_devices", [2, 3, 8])
def test_zero_bubble_wins_where_stages_wait(num_devices: int) -> None:
    profile = profile_of(num_devices)
    before = search_plan(profile, 16, ONLY_1F1B).prediction.step_seconds
    found = search_plan(profile, 16, ZERO_BUBBLE)
    assert {replica.schedule for replica in found.assignment.replicas} == {"zero_bubble"}
    assert found.prediction.step_seconds < 0.95 * before


@pytest.mark.parametrize("num_devices", [2, 3, 4])
def test_interleaved_stages_win_where_stages_wait(num_devices: int) -> None:
    profile = profile_of(num_devices)
    before = search_plan(profile, 16, ONLY_1F1B).prediction.step_seconds
    found = search_plan(profile, 16, INTERLEAVED)
    (replica,) = found.assignment.replicas
    assert is_interleaved(replica)
    assert replica.num_micro_batches % len({span.device for span in replica.spans}) == 0
    assert found.prediction.step_seconds < 0.97 * before


@pytest.mark.parametrize("choices", [ZERO_BUBBLE, INTERLEAVED])
def test_the_engine_takes_the_plans(choices: Choices) -> None:
    plan = plan_profile(profile_of(), 16, choices).plan
    assert Plan.from_json(plan.to_json()) == plan
    schedule = schedule_for(plan.replicas[0])
    kinds = {task.kind for order in schedule.orders for task in order}
    assert ("weights" in kinds) == (choices is ZERO_BUBBLE)
    seconds = {"forward": 1.0, "backward": 1.0, "weights": 1.0}
    assert timeline(schedule, seconds).bubble < 1


def test_1f1b_is_preferred_where_the_gain_is_not_clear() -> None:
    profile = dataclasses.replace(profile_of(), step_overhead_seconds=100.0)
    (replica,) = search_plan(profile, 16).assignment.replicas
    assert replica.schedule == "1f1b"
    assert not is_interleaved(replica)


def test_layers_without_weights_have_no_bubble_to_fill() -> None:
    profile = profile_of(weight_bytes=0)
    layers = profile.model.layers
    replica = ReplicaAssignment(
        samples=8,
        spans=(Span(0, 0, 4), Span(1, 4, 8)),
        num_micro_batches=4,
        in_flight=2,
    )
    late = dataclasses.replace(replica, schedule="zero_bubble")
    seconds = [
        predict(
            Assignment(
                replicas=(given,),
                owners=spread_owners(layers, (given,), profile.cluster),
                recompute=(False,) * 8,
            ),
            profile,
        ).step_seconds
        for given in (replica, late)
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.01)


def test_activations_and_their_gradients_wait_for_gradients_of_weights() -> None:
    profile = profile_of()
    spans = (Span(0, 0, 4), Span(1, 4, 8))
    kept: dict[str, list[float]] = {}
    for schedule in ("1f1b", "zero_bubble"):
        replica = ReplicaAssignment(
            samples=16, spans=spans, num_micro_batches=4, in_flight=2, schedule=schedule
        )
        assignment = Assignment(
            replicas=(replica,), owners=(0,) * 4 + (1,) * 4, recompute=(False,) * 8
        )
        memory = predict(assignment, profile).memory
        kept[schedule] = [memory[device].activations for device in (0, 1)]
    # The first stage computes gradients of weights at once.
    assert kept["1f1b"][0] == kept["zero_bubble"][0]
    # Of two micro-batches of 4 samples the activations of four layers, what they read, and the
    # gradients of their results, 1 KiB each; under 1F1B one micro-batch, and the layers behind are
    # gone.
    assert kept["zero_bubble"][1] == 2 * 4 * (4 + 1 + 4) * 1024
    assert kept["1f1b"][1] < kept["zero_bubble"][1] / 2


def test_a_device_computes_all_its_stages() -> None:
    profile = profile_of()
    given = ReplicaAssignment(samples=16, spans=(Span(0, 0, 4), Span(1, 4, 8)))
    ways = [replica for _, replica in interleaved(given, 2, 4, profile, 1e9)]
    assert all([span.device for span in replica.spans] == [0, 1, 0, 1] for replica in ways)
    even = next(replica for replica in ways if [span.end for span in replica.spans] == [2, 4, 6, 8])
    assert even.in_flight == 4
    owners = (0, 0, 1, 1, 0, 0, 1, 1)
    found = predict(
        Assignment(replicas=(even,), owners=owners, recompute=(False,) * 8), profile
    ).slowest
    alone = dataclasses.replace(given, num_micro_batches=4, in_flight=2)
    before = predict(
        Assignment(replicas=(alone,), owners=(0,) * 4 + (1,) * 4, recompute=(False,) * 8), profile
    ).slowest
    assert found.compute_seconds == pytest.approx(before.compute_seconds)
    assert found.bubble_seconds < before.bubble_seconds


@pytest.mark.parametrize(
    ("choices", "words"),
    [(ZERO_BUBBLE, "schedule zero_bubble"), (INTERLEAVED, "stages interleaved")],
)
def test_explanations_name_what_is_special(choices: Choices, words: str) -> None:
    profile = profile_of()
    assert words in describe(search_plan(profile, 16, choices).assignment, profile)
    assert words in "\n".join(time_lines(plan_profile(profile, 16, choices)))


def test_explanations_say_how_many_layers_are_computed_again() -> None:
    given = ReplicaAssignment(samples=16, spans=(Span(0, 0, 8),))
    assignment = Assignment(
        replicas=(given,), owners=(0,) * 8, recompute=(False, True, True) + (False,) * 5
    )
    assert describe(assignment, profile_of()) == "gpu:0 alone, 2 of 8 layers recomputed"
