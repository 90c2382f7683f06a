"""What the layers of a training step cost: bytes, operations, and time on a device."""

from __future__ import annotations

from evener.engine.costs.costs import layer_costs
from evener.engine.costs.keras_step import trace_keras_step
from evener.engine.costs.measure import StepTimes, measure_layers, measure_step
from evener.engine.costs.split import SplitStep, split_step

__all__ = [
    "SplitStep",
    "StepTimes",
    "layer_costs",
    "measure_layers",
    "measure_step",
    "split_step",
    "trace_keras_step",
]
