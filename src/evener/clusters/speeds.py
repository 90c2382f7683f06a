"""Speeds that kernels reach on devices that are not available, and what is assumed of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evener.clusters.datasheet import MEMORY_EFFICIENCY
from evener.clusters.description import ClusterDescription, Datasheet
from evener.cost_model.prediction import predict
from evener.errors import ProfileError
from evener.planner import Planned
from evener.profile import CostProfile
from evener.units import format_seconds

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
        found[name] = reached_speed(sheet)
    return found


def reached_speed(sheet: Datasheet) -> dict[str, Any]:
    """Return the speed that kernels reach on a device, by its datasheet.

    Args:
        sheet: Datasheet of the device.

    Returns:
        Fields of a `evener.profiler.device_speed.DeviceSpeed`.
    """
    float32 = sheet.float32_flops
    if float32 is None:
        float32 = sheet.peak_flops * (1.0 if sheet.dtype == "float32" else FLOAT32_PER_PEAK)
    peaks = {"float32": float32, "float16": sheet.peak_flops, "bfloat16": sheet.peak_flops}
    return {
        "flops": [[dtype, peak * sheet.efficiency] for dtype, peak in peaks.items()],
        "bytes_per_second": sheet.memory_bytes_per_second * MEMORY_EFFICIENCY,
        "launch_seconds": sheet.launch_seconds,
    }
