"""Cost model of plans: the time of a step and the memory of every device."""

from __future__ import annotations

from evener.cost_model.assignment import HOST_OWNER, Assignment, ReplicaAssignment, Span
from evener.cost_model.prediction import Prediction, predict, predict_plan

__all__ = [
    "HOST_OWNER",
    "Assignment",
    "Prediction",
    "ReplicaAssignment",
    "Span",
    "predict",
    "predict_plan",
]
