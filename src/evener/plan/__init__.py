"""Plans: owners of variables, and devices that compute samples.

Pure Python: nothing here imports TensorFlow, Keras or NumPy.
"""

from __future__ import annotations

from evener.plan.json_schema import plan_schema, plan_schema_text
from evener.plan.names import HOST, HOST_DEVICE, DeviceName, parse_device_name
from evener.plan.owners import computing_devices, owner_of, owner_rules
from evener.plan.parts import (
    BatchNormName,
    DeviceBytes,
    OwnerRule,
    Owners,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    ScheduleName,
    Stage,
)
from evener.plan.plan import Plan
from evener.plan.shares import check_shares, split_batch

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
