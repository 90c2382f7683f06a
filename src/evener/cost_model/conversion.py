"""Conversion between plans, which have names, and assignments, which have indices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from evener.cost_model.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
)
from evener.cost_model.ownership import spread_owners
from evener.errors import PlanError, did_you_mean, listed
from evener.plan.layer_paths import matches, stage_of
from evener.plan.names import HOST, HOST_DEVICE
from evener.plan.owners import owner_of
from evener.plan.parts import (
    OwnerRule,
    Owners,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    Stage,
)
from evener.plan.plan import Plan
from evener.plan.shares import split_batch
from evener.profile import Cluster, ModelCosts


def plan_of(
    assignment: Assignment,
    model: ModelCosts,
    cluster: Cluster,
    *,
    predicted: Predicted | None = None,
    rejected: tuple[Rejected, ...] = (),
) -> Plan:
    """Return an assignment as a plan with the names of devices and layers.

    Args:
        assignment: Layers that each device computes and owns.
        model: Layers.
        cluster: Devices.
        predicted: Prediction for the assignment, if there is one.
        rejected: Rejected alternatives.
    """
    used = sorted(
        {span.device for replica in assignment.replicas for span in replica.spans}
        | {owner for owner in assignment.owners if owner >= 0}
    )
    names = [device.name for device in cluster.devices]
    devices = tuple(
        PlanDevice.named(names[index], cluster.devices[index].memory_bytes) for index in used
    )
    layer_names = [layer.name for layer in model.layers]
    replicas = tuple(
        Replica(
            share=replica.samples,
            stages=tuple(
                Stage(
                    device=names[span.device],
                    layers=tuple(map(literal, layer_names[span.first : span.end]))
                    if len(replica.spans) > 1
                    else ("*",),
                )
                for span in replica.spans
            ),
            num_micro_batches=replica.num_micro_batches,
            in_flight=replica.in_flight,
            schedule=replica.schedule,
        )
        for replica in assignment.replicas
    )
    recompute = tuple(
        literal(name)
        for name, is_recomputed in zip(layer_names, assignment.recompute, strict=True)
        if is_recomputed
    )
    return Plan(
        devices=devices,
        replicas=replicas,
        owners=_owners(assignment, model, cluster),
        recompute=recompute,
        batch_norm="synchronized" if assignment.has_barriers else "per_device",
        predicted=predicted,
        rejected=rejected,
    )


def assignment_of(plan: Plan, model: ModelCosts, cluster: Cluster, batch_size: int) -> Assignment:
    """Return a plan in numbers, for a model, devices and a batch size.

    If the plan names no owner for a layer, owners are spread by bytes over the devices that compute
    the layer, the largest layer first, as the engine does.

    Raises:
        PlanError: PLAN-029 if the cluster lacks a device, PLAN-040 if a pattern names no layer,
            PLAN-041 if a stage has no layers, or the stages are not in the order of the layers.
    """
    device_indices = {device.name: index for index, device in enumerate(cluster.devices)}
    plan.check_devices(tuple(device_indices))
    samples = split_batch(batch_size, plan.shares)
    replicas = tuple(
        ReplicaAssignment(
            samples=count,
            spans=_spans(replica, number, model, device_indices),
            num_micro_batches=replica.num_micro_batches,
            in_flight=replica.in_flight,
            schedule=replica.schedule,
        )
        for number, (replica, count) in enumerate(zip(plan.replicas, samples, strict=True))
        if count
    )
    return Assignment(
        replicas=replicas,
        owners=_owner_indices(plan, model, cluster, replicas),
        recompute=tuple(matches(layer.name, plan.recompute) for layer in model.layers),
        has_barriers=plan.batch_norm == "synchronized",
    )


@functools.cache
def literal(name: str) -> str:
    """Return the pattern that matches only a name.

    >>> literal("block[1]")
    'block[[]1]'
    """
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _owners(assignment: Assignment, model: ModelCosts, cluster: Cluster) -> Owners:
    """Return the owner rules, or ``"sharded"`` or ``"central"`` if those give the same owners."""
    layers = model.layers
    if assignment.owners == spread_owners(layers, assignment.replicas, cluster):
        return "sharded"
    if set(assignment.owners) == {HOST_OWNER}:
        return "central"
    rules: list[OwnerRule] = []
    for layer, owner in zip(layers, assignment.owners, strict=True):
        if layer.owned_bytes:
            assert owner != EACH_MACHINE, "owners in each machine are never named"
            device = HOST if owner == HOST_OWNER else cluster.devices[owner].name
            rules.append(OwnerRule(pattern=f"{literal(layer.name)}/*", device=device))
    if not rules:
        return "sharded"
    # Variables outside the profiled layers, such as counters, need an owner too.
    return (*rules, OwnerRule(pattern="*", device=rules[0].device))


def _spans(
    replica: Replica, number: int, model: ModelCosts, device_indices: dict[str, int]
) -> tuple[Span, ...]:
    if len(replica.stages) == 1:
        return (Span(device_indices[replica.stages[0].device], 0, len(model.layers)),)
    names = [layer.name for layer in model.layers]
    layers = listed([repr(name) for name in names], 12)
    numbers: list[int] = []
    for name in names:
        found = stage_of(name, replica.stages)
        # A layer that no stage names is computed with the layer before it.
        numbers.append(found if found is not None else numbers[-1] if numbers else 0)
    for index, stage in enumerate(replica.stages):
        for pattern in stage.layers:
            if not any(matches(name, [pattern]) for name in names):
                raise PlanError(
                    "PLAN-040",
                    f"replicas[{number}].stages[{index}] names {pattern!r}, but the model "
                    f"{model.name!r} has no such layer.",
                    why=f"Its layers are {layers}.{did_you_mean(pattern, names)}",
                    fix="Correct the pattern, or profile the model again if it has changed.",
                )
    if numbers != sorted(numbers) or len(set(numbers)) < len(replica.stages):
        raise PlanError(
            "PLAN-041",
            f"The stages of replicas[{number}] cannot be costed.",
            why="Each stage must have layers, and samples must pass the stages in their order: "
            f"the layers {layers} are in the stages {numbers}.",
            fix="Give each stage layers that follow one another.",
        )
    return tuple(
        Span(
            device_indices[stage.device],
            numbers.index(index),
            len(numbers) - numbers[::-1].index(index),
        )
        for index, stage in enumerate(replica.stages)
    )


def _owner_indices(
    plan: Plan, model: ModelCosts, cluster: Cluster, replicas: Sequence[ReplicaAssignment]
) -> tuple[int, ...]:
    device_indices = {device.name: index for index, device in enumerate(cluster.devices)}
    fixed: list[int | None] = []
    for layer in model.layers:
        named = plan.owner_of(f"{layer.name}/kernel")
        is_host = named == HOST_DEVICE and (
            plan.owners == "central"
            or HOST_DEVICE not in device_indices
            or _is_host_rule(layer.name, plan)
        )
        fixed.append(None if named is None else HOST_OWNER if is_host else device_indices[named])
    return spread_owners(model.layers, replicas, cluster, fixed)


def _is_host_rule(name: str, plan: Plan) -> bool:
    """Whether the first rule for a layer names the host rather than the device ``cpu:0``."""
    assert not isinstance(plan.owners, str)
    rules = [dataclasses.replace(rule, device=f"<{rule.device}>") for rule in plan.owners]
    return owner_of(f"{name}/kernel", rules) == f"<{HOST}>"
