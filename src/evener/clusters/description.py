"""Described cluster: devices, links, and datasheets or curves of each type of device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from evener.plan.names import DeviceKind
from evener.profile import Cluster, LayerCosts, LayerTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Datasheet:
    """Datasheet of a type of device, with the efficiency reached in training.

    Args:
        peak_flops: Peak floating-point operations per second in `dtype`.
        dtype: Dtype of training, such as ``"float16"``.
        memory_bytes_per_second: Bandwidth of its own memory.
        efficiency: Fraction of the peak that matrix products reach in training, above 0 and at most
            1.
        efficiency_source: Source of the efficiency, or reason of the assumption.
        launch_seconds: Seconds to launch an operation, 0 or more.
        float32_flops: Peak operations per second in float32, or in TF32 where TensorFlow uses it;
            None if the datasheet is for another dtype alone.
    """

    peak_flops: float
    dtype: str
    memory_bytes_per_second: float
    efficiency: float
    efficiency_source: str
    launch_seconds: float
    float32_flops: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """Type of device with a datasheet, measured curves, or both.

    Args:
        name: Name of the type, such as ``"v100"``.
        kind: Kind of device, ``"gpu"`` or ``"cpu"``.
        memory_bytes: Bytes of its memory that a plan may use.
        datasheet: Datasheet; None if there are only curves.
        curves: Measured times by pattern of layer names or kinds; the first match wins.
        source: Source of the figures.
    """

    name: str
    kind: DeviceKind
    memory_bytes: int
    datasheet: Datasheet | None
    curves: Mapping[str, LayerTimes] = field(default_factory=dict[str, LayerTimes], hash=False)
    source: str

    def measured(self, layer: LayerCosts) -> LayerTimes | None:
        """Return the measured times of a layer, or None."""
        for pattern, times in self.curves.items():
            if fnmatchcase(layer.name, pattern) or (layer.kind and layer.kind == pattern):
                return times
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """Description of a cluster, which may be unavailable.

    Args:
        cluster: Devices, machines and links.
        types: Types of its devices by name.
        about: Description in a sentence.
    """

    cluster: Cluster
    types: Mapping[str, DeviceType] = field(hash=False)
    about: str = ""
