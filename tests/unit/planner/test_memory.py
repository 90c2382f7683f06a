"""The memory of every device, by hand.

Variables of a are 310 bytes, of b 180; weights, and so gradients, 100 and 60.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.planner.assignment import EACH_MACHINE, HOST_OWNER, Assignment, ReplicaAssignment, Span
from evener.planner.memory import (
    ExecutionMode,
    MemoryPrediction,
    predict_memory,
    shortages,
    stage_memory,
    stage_moments,
)
from evener.profile import Cluster, Curve, LayerCosts, ModelCosts
from unit.planner.by_hand import MODEL, assigned, cluster_of, whole


def needs(
    assignment: Assignment, cluster: Cluster, *, live: int = 1
) -> dict[int, MemoryPrediction]:
    peak_live = [[live] * len(replica.spans) for replica in assignment.replicas]
    return predict_memory(assignment, MODEL, cluster, peak_live)


def test_each_part_of_one_device() -> None:
    found = needs(assigned(whole(0, samples=6), owners=(0, 0)), cluster_of(1))
    # In the backward pass of a, all activations may still be there.
    assert found == {
        0: MemoryPrediction(
            variables=490, gradients=160, activations=(4 + 8 + 1) * 6, workspace=3 * 6
        )
    }
    assert found[0].total == 490 + 160 + 78 + 18
    # With many samples the worst moment is where the forward pass ends.
    found = needs(assigned(whole(0, samples=60), owners=(0, 0)), cluster_of(1))
    assert found[0] == MemoryPrediction(
        variables=490, gradients=60, activations=(4 + 8 + 1) * 60, workspace=5 * 60
    )


def chain(**more: Any) -> ModelCosts:
    """Return three layers that keep less and less for each sample."""
    layers = tuple(
        LayerCosts(
            name=f"layer_{k}",
            weight_bytes=100,
            optimizer_bytes=200,
            activation_bytes=3.0 - k,
            boundary_bytes=1.0,
            update_bytes=50,
        )
        for k in range(3)
    )
    return ModelCosts(name="chain", layers=layers, **more)


def owned_by_the_first(num_devices: int, samples: int = 1) -> Assignment:
    """Return an assignment of three layers, of which all devices have a whole replica."""
    replicas = tuple(
        ReplicaAssignment(samples=samples, spans=(Span(device, 0, 3),))
        for device in range(num_devices)
    )
    return Assignment(replicas=replicas, owners=(0, 0, 0), recompute=(False,) * 3)


def changed(model: ModelCosts, **of_first: Any) -> ModelCosts:
    first, *rest = model.layers
    return dataclasses.replace(model, layers=(dataclasses.replace(first, **of_first), *rest))


def fused_chain(**of_first: Any) -> ModelCosts:
    """Return layers of which it is known what they need in one call of all passes."""
    layers = [
        dataclasses.replace(
            layer, update_bytes=0, fused_workspace_bytes=7.0, fused_gradient_bytes=20
        )
        for layer in chain().layers
    ]
    return changed(ModelCosts(name="fused", layers=tuple(layers)), **of_first)


@pytest.mark.parametrize(
    ("model", "seconds", "gradients"),
    [
        # One device may come to its updates at the end, or has to.
        (chain(), [1.0], 3 * 100),
        (chain(updates_wait=True), [1.0], 3 * 100),
        (changed(chain(), other_gradient_bytes=1000), [1.0], 2 * 100 + 1100),
        # Those that wait for the others, that of now, and of each other device that which is added.
        (chain(), [1.0, 1.0, 1.0], 3 * 100 + 100 + 2 * 100),
        # Faster devices have all of theirs early.
        (chain(), [1.0, 0.5, 1.0], 3 * 100 + 100 + 3 * 100 + 100),
        # If all others are faster, its own wait for nobody.
        (chain(), [1.0, 0.5, 0.5], 100 + 2 * 3 * 100),
        (chain(), [0.5, 1.0, 1.0], 3 * 100 + 100 + 2 * 100),
        # Own weights make no place for gradients.
        (fused_chain(), [1.0, 0.5], 20 + (100 - 20) + 100 * 3),
        (dataclasses.replace(fused_chain(), layers=chain().layers), [1.0, 0.5], 100 + 100 * 3),
    ],
)
def test_gradients_on_the_owner(model: ModelCosts, seconds: list[float], gradients: int) -> None:
    assignment, live = owned_by_the_first(len(seconds)), [(1,)] * len(seconds)
    cluster = cluster_of(len(seconds))
    assert predict_memory(assignment, model, cluster, live, seconds)[0].gradients == gradients
    if len(set(seconds)) == 1:
        assert predict_memory(assignment, model, cluster, live)[0].gradients == gradients


def test_where_gradients_wait_they_have_the_place_of_fetched_weights() -> None:
    """Beside a pipeline, whose calls have an order, a replica of one call keeps all gradients."""
    pipeline = ReplicaAssignment(samples=1, spans=(Span(0, 0, 2), Span(1, 2, 3)))
    alone = ReplicaAssignment(samples=1, spans=(Span(2, 0, 3),))
    assignment = Assignment(replicas=(pipeline, alone), owners=(0, 2, 1), recompute=(False,) * 3)
    live = [(1, 1), (1,)]
    found = predict_memory(assignment, chain(), cluster_of(3), live)[2]
    assert (found.variables, found.fetched) == (300, 200)
    # The pipeline's for what it owns, that of now, and its own, whose place no weight had.
    assert found.gradients == 100 + 100 + 100


def test_gradients_larger_than_their_weights_wait_where_no_fetched_weight_made_room() -> None:
    layers = [dataclasses.replace(layer, other_gradient_bytes=100) for layer in chain().layers]
    model = dataclasses.replace(chain(), layers=tuple(layers))
    found = predict_memory(owned_by_the_first(2), model, cluster_of(2), [(1,), (1,)])[1]
    # That of now, and the excess of two later layers, which a slow link has not taken yet.
    assert (found.fetched, found.gradients) == (300, 200 + 2 * 100)


def test_an_update_needs_memory_beside_the_gradients_that_wait() -> None:
    model = chain(updates_wait=True)
    found = predict_memory(owned_by_the_first(1), model, cluster_of(1), [(1,)])[0]
    assert found == MemoryPrediction(variables=900, gradients=300, workspace=50)


@settings(max_examples=500)
@given(
    st.lists(
        st.builds(
            LayerCosts,
            name=st.uuids().map(str),
            weight_bytes=st.integers(0, 100),
            update_bytes=st.integers(0, 100),
            activation_bytes=st.integers(0, 2).map(float),
            boundary_bytes=st.integers(0, 2).map(float),
            workspace_bytes=st.integers(0, 10).map(float),
            kernel_workspace=st.sampled_from([None, Curve(((1.0, 30.0), (10.0, 90.0)))]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
    st.integers(1, 30),
)
def test_the_worst_of_all_moments_is_among_those_that_are_looked_at(
    layers: list[LayerCosts], is_alone: bool, samples: int
) -> None:
    model = ModelCosts(name="drawn", layers=tuple(layers))
    span, recompute = Span(0, 0, len(layers)), (False,) * len(layers)
    mode = ExecutionMode(
        recompute=recompute, has_order=False, waits=is_alone, has_barriers=False, is_alone=is_alone
    )
    kept = [layer.activation_bytes for layer in layers]
    every = stage_moments(span, model, mode, kept, accumulates=False)
    found = stage_memory(span, model, mode, accumulates=False)
    assert found.total(1, 1, samples) == max(moment.total(samples) for moment in every)
    assert len(found.moments) <= len(layers)


def test_what_kernels_were_seen_to_need_counts_where_it_is_more() -> None:
    layer = LayerCosts(
        name="a", workspace_bytes=3.0, kernel_workspace=Curve(((1, 40.0), (10, 60.0)))
    )
    assert [layer.workspace(samples) for samples in (0, 1, 10, 100)] == [0, 40, 60, 300]


def test_one_of_several_devices_needs_in_one_call_what_is_known_of_it() -> None:
    kernels = Curve(((1, 1000.0), (10, 10_000.0)))
    model = fused_chain(kernel_workspace=kernels)
    found = predict_memory(owned_by_the_first(2, 10), model, cluster_of(2), [(1,), (1,)])[1]
    # The backward pass of the first layer: only its own activations are left.
    assert found == MemoryPrediction(
        fetched=300, gradients=20, activations=3.0 * 10, workspace=7.0 * 10 + 10_000
    )
    # Alone, it has its own weights, and may come late to what frees activations.
    alone = owned_by_the_first(1, 10)
    found = predict_memory(alone, model, cluster_of(1), [(1,)])[0]
    assert (found.gradients, found.activations) == (300, 3.0 * 10)
    assert found.workspace == 7.0 * 10 + 10_000
    less = fused_chain(kernel_workspace=kernels, fused_workspace_bytes=2.0)
    found = predict_memory(alone, less, cluster_of(1), [(1,)])[0]
    assert (found.gradients, found.activations) == (300, 6.0 * 10)
    assert found.workspace == 10_000


def test_what_waits_for_barriers_of_layers_before_is_there_in_one_call() -> None:
    met = {"forward_barriers": 2, "backward_barriers": 1, "barrier_bytes": 1000.0}
    assignment, live = owned_by_the_first(2, 10), [(1,), (1,)]
    found = predict_memory(assignment, fused_chain(**met), cluster_of(2), live)[1]
    # The backward pass of the last layer: that of the first one waits.
    assert found == MemoryPrediction(
        fetched=300, gradients=20, activations=(6.0 + 1000.0) * 10, workspace=7.0 * 10
    )
    # Of a model of which nothing is known of such calls, the barriers count for the whole step.
    found = predict_memory(assignment, changed(chain(), **met), cluster_of(2), live)[1]
    assert found.activations == (6.0 + 1000.0) * 10


def test_samples_are_gone_when_the_last_update_runs() -> None:
    model = changed(chain(input_bytes=10.0), update_bytes=10_000)
    pipeline = ReplicaAssignment(samples=4, spans=(Span(0, 0, 2), Span(1, 2, 3)))
    assignment = Assignment(replicas=(pipeline,), owners=(0, 0, 1), recompute=(False,) * 3)
    found = predict_memory(assignment, model, cluster_of(2), [(1, 1)])[0]
    assert found == MemoryPrediction(variables=600, gradients=200, workspace=10_000)


def test_micro_batches_need_second_gradients_and_less_for_activations() -> None:
    replica = whole(0, samples=6, num_micro_batches=2)
    found = needs(assigned(replica, owners=(0, 0)), cluster_of(1))[0]
    assert found.gradients == 160 + 160
    # All samples are sent at once.
    assert (found.activations, found.workspace) == (4 * 3 + 6, (3 + 2) * 3)
    # Each one in flight keeps activations.
    replica = whole(0, samples=6, num_micro_batches=3, in_flight=3)
    found = needs(assigned(replica, owners=(0, 0)), cluster_of(1), live=3)[0]
    assert found.activations == (1 * 3 + 12 * 2 + 4) * 2


def test_recomputed_layers_keep_what_they_read() -> None:
    found = needs(assigned(whole(0), owners=(0, 0), recompute=True), cluster_of(1))[0]
    assert found.activations == (4 + 2 + 1) * 2
    assert found.workspace == (3 + 2) * 2
    found = needs(assigned(whole(0, samples=60), owners=(0, 0), recompute=True), cluster_of(1))[0]
    assert found.workspace == (5 + 8 + 2) * 60


def test_stages_keep_what_crosses_to_them() -> None:
    replica = ReplicaAssignment(samples=2, spans=(Span(0, 0, 1), Span(1, 1, 2)))
    found = needs(assigned(replica, owners=(0, 0)), cluster_of(2))
    assert found == {
        # b's gradient comes back from gpu:1.
        0: MemoryPrediction(
            variables=490, gradients=100 + 60, activations=(4 + 1) * 2, workspace=(3 + 2 * 2) * 2
        ),
        1: MemoryPrediction(
            fetched=60, gradients=60, activations=(8 + 2) * 2, workspace=(5 + 2 * 2) * 2
        ),
    }


def test_owners_keep_the_gradients_that_arrive_and_fetch_nothing() -> None:
    found = needs(assigned(whole(0), whole(1), whole(2), owners=(0, 1)), cluster_of(3))
    parts = [(needs.variables, needs.fetched, needs.gradients) for needs in found.values()]
    # That of now, their own that wait, and of the others that which is added.
    # The gradient of a has the place of the weights of b.
    assert parts == [(310, 60, 100 + 3 * 100 - 60), (180, 100, 100 + 3 * 60), (0, 160, 100)]


def test_an_owner_that_does_not_compute_gets_a_gradient_of_everyone() -> None:
    found = needs(assigned(whole(0), whole(1), owners=(2, 2)), cluster_of(3))
    assert found[2] == MemoryPrediction(variables=490, gradients=2 * 160)


def test_the_host_keeps_what_it_owns() -> None:
    found = needs(assigned(whole(0), whole(1), owners=(HOST_OWNER, 0)), cluster_of(2))
    assert found[HOST_OWNER] == MemoryPrediction(variables=310, gradients=2 * 100)
    assert (found[0].variables, found[0].fetched) == (180, 100)


def test_each_machine_spreads_variables_over_its_devices() -> None:
    owners = (EACH_MACHINE, EACH_MACHINE)
    found = needs(assigned(*map(whole, range(3)), owners=owners), cluster_of(1, 2))
    parts = {k: (needs.variables, needs.fetched, needs.gradients) for k, needs in found.items()}
    # That of now, their own parts that wait for the other machine, and the other device's.
    assert parts == {
        0: (490, 0, 100 + 160),
        1: (245, 80, 100 + 80 + 80),
        2: (245, 80, 100 + 80 + 80),
    }


@pytest.mark.parametrize(
    ("memory", "lacking"),
    [(746, []), (745, [(0, 1)]), (None, []), (700, [(0, 46)])],
)
def test_a_device_lacks_what_it_needs_beyond_its_memory(
    memory: int | None, lacking: list[tuple[int, int]]
) -> None:
    cluster = cluster_of(1, memory=[memory], host_memory_bytes=600)
    found = needs(assigned(whole(0, samples=6), owners=(0, 0)), cluster)
    assert list(shortages(found, cluster)) == lacking
    hosted = needs(assigned(whole(0), owners=(HOST_OWNER, HOST_OWNER)), cluster)
    assert list(shortages(hosted, cluster)) == [(HOST_OWNER, 490 + 160 - 600)]
