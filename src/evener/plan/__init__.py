"""Plans: owners of variables, and devices that compute samples.

Pure Python: nothing here imports TensorFlow, Keras or NumPy.
"""

from __future__ import annotations

from evener.plan.parts import (
    HOST,
    HOST_DEVICE,
    BatchNormName,
    DeviceBytes,
    DeviceName,
    OwnerRule,
    Owners,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    ScheduleName,
    Stage,
    computing_devices,
    owner_of,
    owner_rules,
    parse_device_name,
)
from evener.plan.plan import Plan, check_shares, plan_schema, plan_schema_text, split_batch

__all__ = [
    "HOST",
    "HOST_DEVICE",
    "BatchNormName",
    "DeviceBytes",
    "DeviceName",
    "OwnerRule",
    "Owners",
    "Plan",
    "PlanDevice",
    "Predicted",
    "Rejected",
    "Replica",
    "ScheduleName",
    "Stage",
    "check_shares",
    "computing_devices",
    "owner_of",
    "owner_rules",
    "parse_device_name",
    "plan_schema",
    "plan_schema_text",
    "split_batch",
]
