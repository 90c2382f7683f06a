"""Times of layers on devices that are not available, from datasheets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from evener.base.text import format_seconds
from evener.errors import ProfileError, did_you_mean
from evener.plan.profile import CostProfile, Curve, LayerCosts, LayerTimes, ModelCosts
from evener.planner.clusters import ClusterDescription, Datasheet
from evener.planner.planning import Planned
from evener.planner.prediction import predict
from evener.planner.published_models import Kernel, PublishedModel

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
    times = {name: list[LayerTimes]() for name in described.types if name in used}
    for name, of_type in times.items():
        device = described.types[name]
        for layer in model.layers:
            found = device.measured(layer)
            if found is None:
                if device.datasheet is None:
                    known = ", ".join(device.curves)
                    raise ProfileError(
                        "PROF-040",
                        "Nothing is known of the layer "
                        f"{layer.name!r} on devices of type {name!r}.",
                        why=f"The type has no datasheet figures, and curves for {known} alone."
                        + did_you_mean(layer.name, device.curves),
                        fix="Add curves for the layer, or peak, dtype, memory_bandwidth and "
                        "efficiency.",
                    )
                of_kind = counts.get(layer.kind, OPERATIONS_PER_LAYER)
                found = roofline(
                    layer,
                    device.datasheet,
                    num_operations=counts.get(layer.name, of_kind),
                    kernels=kernels.get(layer.name, kernels.get(layer.kind, ())),
                )
            of_type.append(found)
    return CostProfile(
        model=model,
        cluster=described.cluster,
        times={name: tuple(of_type) for name, of_type in times.items()},
    )


def roofline(
    layer: LayerCosts, sheet: Datasheet, *, num_operations: int, kernels: Sequence[Kernel] = ()
) -> LayerTimes:
    """Return the times of a layer on a device, by its datasheet.

    ::

        seconds
           |                      / bound by arithmetic: operations / (peak x efficiency)
           |                     /
           |              ___---/   bound by memory: bytes / bandwidth
           |  _______----
           |  launches: constant per operation
           +---------------------------- samples

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
    launch_of_update = sheet.launch_seconds if update_bytes > 0 else 0.0
    return LayerTimes(
        forward=Curve.total(forward),
        backward=Curve.total(backward),
        update_seconds=update_bytes / bandwidth + launch_of_update,
    )


def _ramp(by_arithmetic: float, by_traffic: float, fixed: float) -> Curve:
    """Return ``max(by_arithmetic n, by_traffic n + fixed)`` seconds of n samples, exactly."""
    bends = [1.0]
    slower = by_arithmetic - by_traffic
    if slower > 0 and fixed / slower > 1.0:
        bends.append(fixed / slower)
    bends.append(2 * bends[-1])
    return Curve(tuple((n, max(by_arithmetic * n, by_traffic * n + fixed)) for n in bends))


FLOAT32_PER_PEAK = 0.5
"""Peak in TF32 as a fraction of that in 16 bits, on NVIDIA's tensor cores; if no file says it."""

LEAST, MOST = 0.4, 1.2
"""Range of the measured step time as a multiple of the predicted one.

LEAST is from ResNet-50 measured on A100, V100, P100 and RTX 3090; see docs/clusters.md. MOST times
the prediction without fusing covers what is not fused, and the host.
"""

LEAST_OF_MODEL, MOST_OF_MODEL = 0.7, 1.4
"""The same for published models, whose kernels are known.

Measured are 0.80 to 1.27 times the predicted time: ResNet-50 and BERT-large on A100, V100 and RTX
3090; see docs/clusters.md.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Assumptions of costs that were computed from datasheets.

    Args:
        described: Cluster.
        unfused: Costs if every operation is a kernel of its own; None for a published model.
    """

    described: ClusterDescription
    unfused: CostProfile | None = None

    def range_seconds(self, planned: Planned) -> tuple[float, float]:
        """Return the least and the most seconds that a step of a plan may take."""
        predicted = planned.prediction.step_seconds
        if self.unfused is None:
            return LEAST_OF_MODEL * predicted, MOST_OF_MODEL * predicted
        slow = predict(planned.assignment, self.unfused).step_seconds
        return LEAST * predicted, MOST * max(slow, predicted)

    def lines(self, planned: Planned) -> Iterator[str]:
        """Yield the range of the step time, and each assumption with its source."""
        least, most = map(format_seconds, self.range_seconds(planned))
        yield f"a step takes {least} to {most}: computed from datasheets, nothing was measured"
        if self.unfused is None:
            yield "bytes and operations: those of its layers by their shapes, in mixed precision"
            yield "elementwise operations fused, as by XLA"
        else:
            yield "bytes and operations: those of the first step, traced on the CPU"
            yield "elementwise operations fused, as by XLA; at the upper end of the range, none"
        yield f"memory: {MEMORY_EFFICIENCY:.0%} of the bandwidth (Deakin et al., BabelStream, 2018)"
        for name in dict.fromkeys(device.type for device in self.described.cluster.devices):
            sheet = self.described.types[name].datasheet
            if sheet is not None:
                source = " ".join(sheet.efficiency_source.split())
                yield f"{name}: {sheet.efficiency:.0%} of the peak in products ({source})"


def reached_speeds(described: ClusterDescription) -> dict[str, dict[str, Any]]:
    """Return the speed that kernels reach on each type of device of a cluster.

    Raises:
        ProfileError: PROF-041 if a type has measured curves of layers alone: they are not those of
            any other model.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(device.type for device in described.cluster.devices):
        sheet = described.types[name].datasheet
        if sheet is None:
            raise ProfileError(
                "PROF-041",
                f"The times of a script on devices of type {name!r} cannot be computed.",
                why="The type has curves of named layers, and no datasheet figures.",
                fix="Add peak, dtype, memory_bandwidth, efficiency and efficiency_source.",
            )
        float32 = sheet.float32_flops
        if float32 is None:
            float32 = sheet.peak_flops * (1.0 if sheet.dtype == "float32" else FLOAT32_PER_PEAK)
        peaks = {"float32": float32, "float16": sheet.peak_flops, "bfloat16": sheet.peak_flops}
        found[name] = {
            "flops": [[dtype, peak * sheet.efficiency] for dtype, peak in peaks.items()],
            "bytes_per_second": sheet.memory_bytes_per_second * MEMORY_EFFICIENCY,
            "launch_seconds": sheet.launch_seconds,
        }
    return found
