"""Times of layers on devices that are not available, from datasheets.

::

    seconds
       |                      / bound by arithmetic: operations / (peak x efficiency)
       |                     /
       |              ___---/   bound by memory: bytes / bandwidth
       |  _______----
       |  launches: constant per operation
       +---------------------------- samples
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from evener.clusters.description import ClusterDescription, Datasheet, DeviceType
from evener.clusters.published import Kernel, PublishedModel
from evener.errors import ProfileError, did_you_mean
from evener.profile import CostProfile, Curve, LayerCosts, LayerTimes, ModelCosts

OPERATIONS_PER_LAYER = 10
"""Operations of a layer's forward pass if the number is unknown."""

BACKWARD_PER_FORWARD = 2
"""The backward pass has two products for each of the forward pass: gradients of inputs and weights.

Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM, 2021, appendix.
"""

MEMORY_EFFICIENCY = 0.8
"""Fraction of the memory bandwidth of a datasheet that kernels reach.

Source: Deakin, Price, Martineau, McIntosh-Smith: Evaluating attainable memory bandwidth of parallel
programming models via BabelStream, 2018, figures of the GPUs: some 70 % to 90 %.
"""

_LAUNCHES_OF_UPDATE = 1
_NO_COUNTS: Mapping[str, int] = MappingProxyType({})


def datasheet_profile(
    model: ModelCosts | PublishedModel,
    described: ClusterDescription,
    *,
    num_operations: Mapping[str, int] = _NO_COUNTS,
) -> CostProfile:
    """Return the profile of a model on a described cluster.

    Measured curves of a type of device take precedence over its datasheet.

    Args:
        model: Costs of the layers.
        described: Cluster with the datasheets or curves of its types of devices.
        num_operations: Number of operations of a forward pass, by name or kind of layer; a
            `PublishedModel` has its own.

    Raises:
        ProfileError: PROF-040 if a type of device has no datasheet, and no curves for a layer.

    >>> from evener.clusters import cluster_named, model_named
    >>> profile = datasheet_profile(model_named("bert-large"), cluster_named("rtx3090-rtx3060"))
    >>> fast, slow = (profile.times[name][1].forward(8) for name in ("rtx3090", "rtx3060"))
    >>> 2.5 < slow / fast < 3.0
    True
    """
    counts, kernels = dict(num_operations), dict[str, tuple[Kernel, ...]]()
    if isinstance(model, PublishedModel):
        counts, kernels = {**model.num_operations, **counts}, dict(model.kernels)
        model = model.costs
    used = {device.type for device in described.cluster.devices}
    return CostProfile(
        model=model,
        cluster=described.cluster,
        times={
            name: tuple(_layer_times(layer, device, counts, kernels) for layer in model.layers)
            for name, device in described.types.items()
            if name in used
        },
    )


def roofline(
    layer: LayerCosts,
    sheet: Datasheet,
    *,
    num_operations: int,
    kernels: Sequence[Kernel] = (),
) -> LayerTimes:
    """Return the times of a layer on a device, by its datasheet.

    A kernel takes as long as its arithmetic or its memory traffic, whichever is longer; a pass is
    the sum of its kernels, plus the launches of its operations. A layer whose kernels are not known
    is a single one: every saved activation is written once and read once in the forward pass, the
    weights are read once, and a backward pass takes twice as long. Source: Williams, Waterman,
    Patterson: Roofline: An Insightful Visual Performance Model for Multicore Architectures, 2009.
    The launches are our addition: without them small batches would look as efficient as large ones.

    Args:
        layer: Costs of the layer.
        sheet: Datasheet of the device.
        num_operations: Number of operations of the forward pass.
        kernels: Kernels of the layer; empty if they are not known.
    """
    flops = sheet.peak_flops * sheet.efficiency
    bandwidth = sheet.memory_bytes_per_second * MEMORY_EFFICIENCY
    launches = num_operations * sheet.launch_seconds
    if not kernels:
        kernels = (
            Kernel(
                flops=layer.forward_flops,
                bytes=2 * layer.activation_bytes,
                fixed_bytes=layer.weight_bytes,
            ),
        )
    forward = [Curve(((1, launches), (2, launches)))]
    backward = [forward[0].scaled(BACKWARD_PER_FORWARD)]
    for kernel in kernels:
        fixed = kernel.fixed_bytes / bandwidth
        forward.append(_ramp(kernel.flops / flops, kernel.bytes / bandwidth, fixed))
        backward.append(
            forward[-1].scaled(BACKWARD_PER_FORWARD)
            if kernel.backward_bytes is None
            else _ramp(0.0, kernel.backward_bytes / bandwidth, fixed)
        )
    # The optimizer reads weights, gradients and its state, and writes weights and state.
    update_bytes = 3 * layer.weight_bytes + 2 * layer.optimizer_bytes
    has_update = update_bytes > 0
    return LayerTimes(
        forward=Curve.total(forward),
        backward=Curve.total(backward),
        update_seconds=update_bytes / bandwidth
        + has_update * _LAUNCHES_OF_UPDATE * sheet.launch_seconds,
    )


def _ramp(by_arithmetic: float, by_traffic: float, fixed: float) -> Curve:
    """Return ``max(by_arithmetic n, by_traffic n + fixed)`` seconds of n samples, exactly."""
    bends = [1.0]
    slower = by_arithmetic - by_traffic
    if slower > 0 and fixed / slower > 1.0:
        bends.append(fixed / slower)
    bends.append(2 * bends[-1])
    return Curve(tuple((n, max(by_arithmetic * n, by_traffic * n + fixed)) for n in bends))


def _layer_times(
    layer: LayerCosts,
    device: DeviceType,
    counts: Mapping[str, int],
    kernels: Mapping[str, tuple[Kernel, ...]],
) -> LayerTimes:
    measured = device.measured(layer)
    if measured is not None:
        return measured
    if device.datasheet is None:
        raise ProfileError(
            "PROF-040",
            f"Nothing is known of the layer {layer.name!r} on devices of type {device.name!r}.",
            why=f"The type has no datasheet figures, and curves for {', '.join(device.curves)} "
            f"alone.{did_you_mean(layer.name, device.curves)}",
            fix="Add curves for the layer, or peak, dtype, memory_bandwidth and efficiency.",
        )
    number = counts.get(layer.name, counts.get(layer.kind, OPERATIONS_PER_LAYER))
    return roofline(
        layer,
        device.datasheet,
        num_operations=number,
        kernels=kernels.get(layer.name, kernels.get(layer.kind, ())),
    )
