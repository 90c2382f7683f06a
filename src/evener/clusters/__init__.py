"""Clusters that are not available: described in YAML, with costs from datasheets.

Pure Python: nothing here imports TensorFlow.
"""

from __future__ import annotations

from evener.clusters.datasheet import datasheet_profile, roofline
from evener.clusters.description import ClusterDescription, Datasheet, DeviceType
from evener.clusters.published import PublishedModel, model_named, model_names
from evener.clusters.reading import parse_cluster, read_cluster
from evener.clusters.shipped import cluster_named, cluster_names
from evener.clusters.speeds import Assumptions, reached_speeds

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
