"""Costs of layers that are the same on any device: bytes and operations."""

from __future__ import annotations

import dataclasses

from evener.engine.flops.flops import flops_per_sample
from evener.engine.flops.sizes import bytes_per_sample
from evener.engine.trace.step import TracedStep
from evener.profile import LayerCosts, ModelCosts
from evener.profiler.activation_bytes import LayerBytes, bytes_of_layers, updates_wait
from evener.profiler.barriers import barriers_of
from evener.profiler.kinds import kinds_of
from evener.profiler.split import SplitStep, split_step


def layer_costs(step: TracedStep | SplitStep, *, name: str = "") -> ModelCosts:
    """Return the device-independent costs of the layers of a step. Nothing is run.

    Args:
        step: Step, traced with layers or already split.
        name: Name of the model, for tables.

    Returns:
        The layers in the order in which samples pass through them. Variables that belong to no
        layer, such as the totals of metrics, count as state of the last one.
    """
    split = step if isinstance(step, SplitStep) else split_step(step)
    kinds = kinds_of(split)
    found = bytes_of_layers(split)
    barriers = barriers_of(split)
    layers = [
        dataclasses.replace(
            _costs_of(split, k, found[k], kinds[k]),
            forward_barriers=barriers[k].forward,
            backward_barriers=barriers[k].backward,
            barrier_bytes=barriers[k].waiting_bytes,
        )
        for k in range(len(split.layers))
    ]
    traced = split.traced
    samples = [
        tensor
        for tensor, axis in zip(traced.graph.inputs, traced.batch_axes, strict=False)
        if axis is not None
    ]
    return ModelCosts(
        name=name,
        layers=tuple(layers),
        input_bytes=sum(map(bytes_per_sample, samples)),
        updates_wait=updates_wait(split),
    )


def _costs_of(split: SplitStep, number: int, found: LayerBytes, kind: str) -> LayerCosts:
    owned = dict.fromkeys(("weight", "slot", "state"), 0)
    is_last = number == len(split.layers) - 1
    for variable in split.variables:
        if variable.layer == number or (is_last and variable.layer is None):
            owned[variable.role] += variable.num_bytes
    nodes = [node for task in split.layers[number].forward for node in task.nodes]
    return LayerCosts(
        name=split.chain.names[number],
        weight_bytes=owned["weight"],
        optimizer_bytes=owned["slot"],
        state_bytes=owned["state"],
        other_gradient_bytes=max(0, found.gradients - owned["weight"]),
        update_bytes=found.update,
        activation_bytes=found.activations,
        boundary_bytes=found.boundary,
        workspace_bytes=found.workspace,
        fused_workspace_bytes=found.fused_workspace,
        fused_gradient_bytes=found.fused_gradients,
        forward_flops=flops_per_sample(nodes),
        kind=kind,
    )
