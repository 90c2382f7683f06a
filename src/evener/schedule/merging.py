"""Orders for replicas in which several stages share a device, by simulation.

Greedy list scheduling: every task takes one tick, and at each tick every device begins the best of
the tasks that it can begin. The sequence in which a device begins its tasks is its order.

::

    stages on a, b, a; 1F1B with 3 in flight (micro-batch.stage)

    tick     0    1    2    3    4    5    6    7    8    9
    a      F0.0 F1.0 F0.2 B0.2 F1.2 B1.2 B0.0 B1.0 F2.0 ...
    b       .   F0.1 F1.1  .   B0.1  .   B1.1  .    .   F2.1 ...

There is no deadlock. Micro-batches pass every stage in the same order, so no stage that the oldest
live micro-batch needs is full of later ones: its next task can begin, or a stage is full of
micro-batches that wait only for their weight gradients, which can begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evener.plan.parts import Replica, ScheduleName
from evener.schedule.orders import live_limit
from evener.schedule.task import Task, TaskKind, dependencies

# Preferred kinds among the tasks that can begin, the best first.
_PREFERRED: dict[ScheduleName, tuple[TaskKind, ...]] = {
    "1f1b": ("backward", "forward"),
    "gpipe": ("forward", "backward"),
    "zero_bubble": ("backward", "forward", "weights"),
}


@dataclass(slots=True)
class _Begun:
    """Number of tasks of each kind that a stage has begun."""

    forward: int = 0
    backward: int = 0
    weights: int = 0


@dataclass(slots=True, kw_only=True)
class _Merging:
    """State of the simulation."""

    replica: Replica
    ended: set[Task] = field(default_factory=set[Task])
    begun: list[_Begun] = field(default_factory=list[_Begun])

    def __post_init__(self) -> None:
        self.begun = [_Begun() for _ in self.replica.stages]

    def best(self, stages: Sequence[int]) -> Task | None:
        """Return the task that a device with these stages begins, or None if it must wait.

        Among tasks of one kind, the deepest stage comes first, so that micro-batches finish early.
        GPipe keeps all forwards of a wave anyway: there the first stage comes first, because the
        other devices wait for it.
        """
        for kind in _PREFERRED[self.replica.schedule]:
            is_shallow_first = self.replica.schedule == "gpipe" and kind == "forward"
            for stage in stages if is_shallow_first else reversed(stages):
                task = self._ready(kind, stage)
                if task is not None:
                    return task
        return None

    def end(self, task: Task) -> None:
        counts = self.begun[task.stage]
        setattr(counts, task.kind, getattr(counts, task.kind) + 1)
        self.ended.add(task)

    def _ready(self, kind: TaskKind, stage: int) -> Task | None:
        """Return the next task of a kind in a stage if it can begin."""
        number: int = getattr(self.begun[stage], kind)
        if number == self.replica.num_micro_batches or not self._is_allowed(kind, stage):
            return None
        task = Task(kind, stage, self._micro_batch(kind, number))
        needed = dependencies(task, num_stages=len(self.replica.stages))
        return task if self.ended.issuperset(needed) else None

    def _wave(self, number: int) -> range:
        begin = number - number % self.replica.in_flight
        return range(begin, min(begin + self.replica.in_flight, self.replica.num_micro_batches))

    def _micro_batch(self, kind: TaskKind, number: int) -> int:
        """Return the micro-batch at position ``number`` in the order of a stage."""
        if self.replica.schedule == "gpipe" and kind == "backward":
            wave = self._wave(number)
            return wave[-1] - (number - wave[0])
        return number

    def _is_allowed(self, kind: TaskKind, stage: int) -> bool:
        """Whether the limits allow a stage its next task of a kind."""
        begun, in_flight = self.begun[stage], self.replica.in_flight
        if self.replica.schedule == "gpipe":
            if kind == "forward":
                return begun.backward >= self._wave(begun.forward)[0]
            return begun.forward >= self._wave(begun.backward)[-1] + 1
        if kind != "forward":
            return True
        # This bounds the number of deferred weight gradients.
        if self.replica.schedule == "zero_bubble" and begun.forward - begun.weights >= in_flight:
            return False
        return begun.forward - begun.backward < live_limit(stage, in_flight)


def merged_orders(
    replica: Replica, stages_of_devices: Sequence[Sequence[int]]
) -> tuple[tuple[Task, ...], ...]:
    """Return one order of tasks per device.

    Args:
        replica: Replica whose tasks are ordered, within the limits of its schedule.
        stages_of_devices: Stage numbers of each device, ascending.
    """
    state = _Merging(replica=replica)
    orders: list[list[Task]] = [[] for _ in stages_of_devices]
    num_kinds = len(_PREFERRED[replica.schedule])
    num_left = num_kinds * len(replica.stages) * replica.num_micro_batches
    while num_left:
        # All devices choose before any task of this tick ends.
        chosen = [state.best(stages) for stages in stages_of_devices]
        for order, task in zip(orders, chosen, strict=True):
            if task is not None:
                order.append(task)
                state.end(task)
                num_left -= 1
        assert any(chosen), f"no task can begin: {replica}"
    return tuple(map(tuple, orders))
