"""Cost profiles: costs of the layers of a model, devices, and links between them.

Pure Python: nothing here imports TensorFlow.
"""

from __future__ import annotations

from evener.profile.cluster import HOST_MEMORY, Cluster, ClusterDevice, Link, Machine
from evener.profile.costs import CostProfile, LayerCosts, LayerTimes, ModelCosts
from evener.profile.curve import Curve

__all__ = [
    "HOST_MEMORY",
    "Cluster",
    "ClusterDevice",
    "CostProfile",
    "Curve",
    "LayerCosts",
    "LayerTimes",
    "Link",
    "Machine",
    "ModelCosts",
]
