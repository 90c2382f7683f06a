"""What a plan costs: the time of its step and the memory of every device."""

from __future__ import annotations

from evener.plan.costing.assignment import HOST_OWNER, Assignment, ReplicaAssignment, Span
from evener.plan.costing.prediction import Prediction, predict, predict_plan

__all__ = [
    "HOST_OWNER",
    "Assignment",
    "Prediction",
    "ReplicaAssignment",
    "Span",
    "predict",
    "predict_plan",
]
