"""Schedules of pipelines: the order of tasks on each device, and their timeline.

Pure Python: nothing here imports TensorFlow, Keras or NumPy.
"""

from __future__ import annotations

from evener.schedule.replica_schedule import Schedule, forward_schedule_for, schedule_for
from evener.schedule.task import Task, TaskKind, dependencies
from evener.schedule.timing import TimedTask, Timeline, timeline

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
