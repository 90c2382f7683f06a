"""Who owns which variable, who computes which samples: the Plan, and its parts.

Pure Python: nothing here imports TensorFlow, Keras or NumPy.
"""

from __future__ import annotations

from evener.plan.evening import Evened, ShareEvener, Window, even_shares
from evener.plan.names import HOST, HOST_DEVICE, DeviceName, parse_device_name
from evener.plan.owners import owner_of, owner_rules
from evener.plan.parts import (
    DeviceBytes,
    OwnerRule,
    Owners,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    Stage,
)
from evener.plan.plan import Plan
from evener.plan.shares import check_shares, split_batch

__all__ = [
    "HOST",
    "HOST_DEVICE",
    "DeviceBytes",
    "DeviceName",
    "Evened",
    "OwnerRule",
    "Owners",
    "Plan",
    "PlanDevice",
    "Predicted",
    "Rejected",
    "Replica",
    "ShareEvener",
    "Stage",
    "Window",
    "check_shares",
    "even_shares",
    "owner_of",
    "owner_rules",
    "parse_device_name",
    "split_batch",
]
