"""Cost profiles: costs of the layers of a model, devices, and links between them.

Pure Python: nothing here imports TensorFlow.
"""

from __future__ import annotations

from evener.plan.profile import (
    HOST_MEMORY,
    Cluster,
    ClusterDevice,
    CostProfile,
    Curve,
    LayerCosts,
    LayerTimes,
    Link,
    Machine,
    ModelCosts,
)

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
