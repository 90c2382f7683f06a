"""A described cluster: its devices and links, and what is known of each type of device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from evener.plan.names import DeviceKind
from evener.profile import Cluster, LayerCosts, LayerTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Datasheet:
    """What a vendor says of a type of device, and how much of it is reached.

    Args:
        peak_flops: Floating-point operations per second at most, in `dtype`.
        dtype: In which the type trains, such as ``"float16"``.
        memory_bytes_per_second: Of its own memory.
        efficiency: The fraction of the peak that matrix products reach in training, above 0 and
            at most 1.
        efficiency_source: Who measured it, or why it is assumed.
        launch_seconds: What each operation costs to be started, 0 or more.
    """

    peak_flops: float
    dtype: str
    memory_bytes_per_second: float
    efficiency: float
    efficiency_source: str
    launch_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """What is known of a type of device: a datasheet, measured curves, or both.

    Args:
        name: Of the type, such as ``"v100"``.
        kind: ``"gpu"`` or ``"cpu"``.
        memory_bytes: What a plan may use of its memory.
        datasheet: None if there are only curves.
        curves: Measured times by pattern of layer names or kinds; the first that matches wins.
        source: Where the figures are from.
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
    """A cluster that need not be here.

    Args:
        cluster: Its devices, machines and links.
        types: The types of its devices by name.
        about: What it stands for, in a sentence.
    """

    cluster: Cluster
    types: Mapping[str, DeviceType] = field(hash=False)
    about: str = ""
