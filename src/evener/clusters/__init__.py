"""Clusters that are not available: described in YAML, with costs from datasheets.

Pure Python: nothing here imports TensorFlow.
"""

from __future__ import annotations

from evener.planner.clusters import (
    ClusterDescription,
    Datasheet,
    DeviceType,
    cluster_named,
    cluster_names,
    parse_cluster,
    read_cluster,
)
from evener.planner.datasheets import Assumptions, datasheet_profile, reached_speeds, roofline
from evener.planner.published_models import PublishedModel, model_named, model_names

__all__ = [
    "Assumptions",
    "ClusterDescription",
    "Datasheet",
    "DeviceType",
    "PublishedModel",
    "cluster_named",
    "cluster_names",
    "datasheet_profile",
    "model_named",
    "model_names",
    "parse_cluster",
    "reached_speeds",
    "read_cluster",
    "roofline",
]
