"""The tasks of a replica: one pass of one micro-batch through one stage."""

from __future__ import annotations

from typing import Literal, NamedTuple

TaskKind = Literal["forward", "backward", "weights"]


class Task(NamedTuple):
    """One pass of one micro-batch through one stage.

    A tuple, because schedules are sets and mappings of thousands of them.

    Args:
        kind: ``"forward"``; ``"backward"``, the gradients of the stage's inputs and weights;
            or, under the schedule ``"zero_bubble"``, ``"backward"`` for the gradients of the
            inputs alone and ``"weights"`` for those of the weights.
        stage: The number of the stage, from 0.
        micro_batch: The number of the micro-batch, from 0.
    """

    kind: TaskKind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        """Return the task as it is drawn: its letter, micro-batch and stage.

        >>> print(Task(kind="weights", stage=2, micro_batch=5))
        W5.2
        """
        return f"{self.kind[0].upper()}{self.micro_batch}.{self.stage}"


def dependencies(task: Task, *, num_stages: int) -> tuple[Task, ...]:
    """Return the tasks that must have ended before a task can begin.

    ::

        stage 0    F ──┬──────────► B ──► W
                       ▼            ▲
        stage 1        F ──┬──► B ──┴───► W
                           ▼    ▲
        stage 2            F ───┴───────► W

    >>> [str(needed) for needed in dependencies(Task("backward", 1, 7), num_stages=3)]
    ['F7.1', 'B7.2']
    """
    kind, stage, micro_batch = task
    if kind == "forward":
        return (Task("forward", stage - 1, micro_batch),) if stage else ()
    if kind == "weights":
        return (Task("backward", stage, micro_batch),)
    own = Task("forward", stage, micro_batch)
    if stage + 1 == num_stages:
        return (own,)
    return own, Task("backward", stage + 1, micro_batch)
