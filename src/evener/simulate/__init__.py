"""Plans on clusters that need not be here: described, costed by datasheets, simulated.

The values are pure Python: nothing that is imported here imports TensorFlow.
"""

from __future__ import annotations

from evener.simulate.datasheet import datasheet_profile, roofline
from evener.simulate.description import ClusterDescription, Datasheet, DeviceType
from evener.simulate.published import PublishedModel, model_named, model_names
from evener.simulate.reading import parse_cluster, read_cluster
from evener.simulate.shipped import cluster_named, cluster_names
from evener.simulate.simulation import (
    MemoryPoint,
    SimulatedEvent,
    SimulatedTransfer,
    Simulation,
    simulate,
    simulate_plan,
)

__all__ = [
    "ClusterDescription",
    "Datasheet",
    "DeviceType",
    "MemoryPoint",
    "PublishedModel",
    "SimulatedEvent",
    "SimulatedTransfer",
    "Simulation",
    "cluster_named",
    "cluster_names",
    "datasheet_profile",
    "model_named",
    "model_names",
    "parse_cluster",
    "read_cluster",
    "roofline",
    "simulate",
    "simulate_plan",
]
