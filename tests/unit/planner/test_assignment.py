"""Plans as assignments and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from evener.errors import PlanError
from evener.plan import (
    Plan,
)
from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    assignment_of,
    plan_of,
    spread_owners,
)
from evener.profile import CostProfile, LayerCosts, ModelCosts
from simulation.cases import cases
from unit.planner.by_hand import MODEL, assigned, cluster_of, whole


@settings(max_examples=50)
@given(cases(max_machines=1))
def test_a_plan_says_the_same_as_its_assignment(case: tuple[Assignment, CostProfile]) -> None:
    assignment, profile = case
    model, cluster = profile.model, profile.cluster
    plan = plan_of(assignment, model, cluster)
    found = assignment_of(plan, model, cluster, assignment.batch_size)
    assert found.replicas == assignment.replicas
    assert found.recompute == assignment.recompute
    for layer, owner, wanted in zip(model.layers, found.owners, assignment.owners, strict=True):
        # A layer without variables has no rule.
        assert owner == wanted or not layer.owned_bytes
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("counts", "owner", "written"),
    [((2, 1), EACH_MACHINE, "sharded"), ((1,), HOST_OWNER, "central")],
)
def test_owners_in_each_machine_and_on_the_host(
    counts: tuple[int, ...], owner: int, written: str
) -> None:
    cluster = cluster_of(*counts)
    assignment = assigned(*map(whole, range(sum(counts))), owners=(owner, owner))
    plan = plan_of(assignment, MODEL, cluster)
    assert plan.owners == written
    assert assignment_of(plan, MODEL, cluster, assignment.batch_size) == assignment


def test_rules_of_the_host_and_of_devices_and_replicas_without_samples() -> None:
    plan = Plan.data_parallel(
        ["gpu:0", "gpu:1"], shares=[1, 0], owners={"a/*": "host", "*": "gpu:1"}
    )
    found = assignment_of(plan, MODEL, cluster_of(2), 4)
    assert found.owners == (HOST_OWNER, 1)
    assert found.replicas == (whole(0, samples=4),)


def test_layers_are_spread_by_bytes_the_largest_first() -> None:
    layers = [LayerCosts(name=f"{k}", weight_bytes=size) for k, size in enumerate((1, 5, 3, 2))]
    replicas = [ReplicaAssignment(samples=1, spans=(Span(device, 0, 4),)) for device in range(2)]
    # 5 | 3, then 2 beside 3 (5 | 5), then 1 to the first.
    assert spread_owners(layers, replicas, cluster_of(2)) == (0, 0, 1, 1)
    # A device with twice the memory is half as full.
    unequal = cluster_of(2, memory=[100, 200])
    assert spread_owners(layers, replicas, unequal) == (1, 0, 1, 1)
    assert spread_owners(layers, replicas, cluster_of(2), [None, 1, None, None]) == (0, 1, 0, 0)


def test_names_with_wildcards_stand_for_themselves() -> None:
    layers = (LayerCosts(name="block[1]", weight_bytes=1), LayerCosts(name="block1"))
    model = ModelCosts(name="odd", layers=layers)
    replica = ReplicaAssignment(samples=1, spans=(Span(0, 0, 1), Span(1, 1, 2)))
    assignment = Assignment(replicas=(replica,), owners=(1, 1), recompute=(True, False))
    plan = plan_of(assignment, model, cluster_of(2))
    assert plan.recompute == ("block[[]1]",)
    assert plan.replicas[0].stages[0].layers == ("block[[]1]",)
    assert assignment_of(plan, model, cluster_of(2), 1) == assignment


def test_a_device_that_the_cluster_lacks_and_a_pattern_that_names_no_layer() -> None:
    with pytest.raises(PlanError, match="PLAN-029"):
        assignment_of(Plan.data_parallel(["gpu:0", "gpu:7"]), MODEL, cluster_of(2), 4)
    with pytest.raises(PlanError, match="PLAN-040") as caught:
        assignment_of(Plan.pipeline({"gpu:0": "a", "gpu:1": "bb"}), MODEL, cluster_of(2), 4)
    assert caught.value.what == (
        "replicas[0].stages[1] names 'bb', but the model 'two' has no such layer."
    )
    assert "Its layers are 'a', 'b'." in caught.value.why


@pytest.mark.parametrize("stages", [("b", "a"), (("*a", "b"), "?")])
def test_stages_out_of_line_or_empty(stages: tuple[str | tuple[str, ...], ...]) -> None:
    plan = Plan.pipeline(dict(zip(("gpu:0", "gpu:1"), stages, strict=True)))
    with pytest.raises(PlanError, match="PLAN-041") as caught:
        assignment_of(plan, MODEL, cluster_of(2), 4)
    assert "'a', 'b' are in the stages" in caught.value.why


def test_a_stage_may_name_a_layer_around_those_of_the_model() -> None:
    """As in the engine: the outermost layer that a stage names decides."""
    layers = [LayerCosts(name=name) for name in ("encoder/a", "encoder/b", "head")]
    model = ModelCosts(name="nested", layers=tuple(layers))
    plan = Plan.pipeline({"gpu:0": "encoder", "gpu:1": "head"}, recompute=["encoder"])
    found = assignment_of(plan, model, cluster_of(2), 4)
    assert found.replicas[0].spans == (Span(0, 0, 2), Span(1, 2, 3))
    assert found.recompute == (True, True, False)
