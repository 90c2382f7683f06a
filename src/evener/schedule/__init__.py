"""Schedules of pipelines: the order of tasks on each device, and their timeline.

Pure Python: nothing here imports TensorFlow, Keras or NumPy.
"""

from __future__ import annotations

from evener.plan.schedule import (
    Schedule,
    Task,
    TaskKind,
    TimedTask,
    Timeline,
    dependencies,
    forward_schedule_for,
    schedule_for,
    timeline,
)

__all__ = [
    "Schedule",
    "Task",
    "TaskKind",
    "TimedTask",
    "Timeline",
    "dependencies",
    "forward_schedule_for",
    "schedule_for",
    "timeline",
]
