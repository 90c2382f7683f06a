"""Tasks of a replica, each one pass of one micro-batch through one stage."""

from __future__ import annotations

from typing import Literal, NamedTuple

TaskKind = Literal["forward", "backward", "weights"]


class Task(NamedTuple):
    """One pass of one micro-batch through one stage.

    It is a tuple for speed: schedules have sets and mappings of thousands of tasks.

    Attributes:
        kind: Kind of the pass. ``"backward"`` computes the gradients of the stage's inputs and
            weights; under the schedule ``"zero_bubble"`` only those of the inputs, and
            ``"weights"`` computes those of the weights.
        stage: Stage number, from 0.
        micro_batch: Micro-batch number, from 0.
    """

    kind: TaskKind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        """Return the letter, the micro-batch and the stage of the task.

        >>> print(Task(kind="weights", stage=2, micro_batch=5))
        W5.2
        """
        return f"{self.kind[0].upper()}{self.micro_batch}.{self.stage}"


def dependencies(task: Task, *, num_stages: int) -> tuple[Task, ...]:
    """Return the tasks that must end before a task can begin.

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
