"""The order in which devices take the units of a step: tasks of a micro-batch, or computed once.

Every device follows the schedule of its replica (`evener.plan.schedule_for`). A reduction over
the batch in mid-model needs all micro-batches before one can go on; where the schedule would
wait for ever at such a barrier, the device takes the next unit that can run::

    stage 0    F0 F1 F2 F3 | F0 B0 F1 B1 F2 B2 F3 B3
                           ^ the mean of a BatchNormalization, of all micro-batches
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evener.engine.pipeline.layout import Layout
from evener.engine.pipeline.passes import BACKWARD, FORWARD
from evener.schedule.replica_schedule import forward_schedule_for, schedule_for


class Unit(NamedTuple):
    """A task of one micro-batch, or one that is computed once.

    Attributes:
        task: The number of the task.
        micro_batch: The number of the micro-batch; None for a task that is computed once.
    """

    task: int
    micro_batch: int | None


class Turn(NamedTuple):
    """What decides when a device takes a unit.

    Attributes:
        device: TensorFlow's name of the device.
        place: The place of the unit in the order of its replica's schedule for the device.
        replica: The number of the replica.
        level: The level of its task: what the task waits for has a lower one.
    """

    device: str
    place: int
    replica: int
    level: int


def order_units(before: Mapping[Unit, set[Unit]], turns: Mapping[Unit, Turn]) -> list[Unit]:
    """Return all units in an order in which they can run, and which each device follows.

    Args:
        before: For every unit those it needs, in an order in which they could run.
        turns: Of the units that take turns on a device. The others run as soon as they can.
    """
    queues: dict[str, list[Unit]] = defaultdict(list)
    for unit in sorted(turns, key=lambda unit: turns[unit][1:]):
        queues[turns[unit].device].append(unit)
    free = [unit for unit in before if unit not in turns]
    done: dict[Unit, None] = {}

    def can_run(unit: Unit) -> bool:
        return all(one in done for one in before[unit])

    while len(done) < len(before):
        ran = len(done)
        waiting = []
        for unit in free:
            if can_run(unit):
                done[unit] = None
            else:
                waiting.append(unit)
        free = waiting
        for queue in queues.values():
            while queue and can_run(queue[0]):
                done[queue.pop(0)] = None
        if len(done) == ran:
            # All devices wait for each other's later units: for a reduction over the batch.
            ready = [unit for queue in queues.values() for unit in queue if can_run(unit)]
            unit = min(ready, key=lambda unit: turns[unit][1:])
            queues[turns[unit].device].remove(unit)
            done[unit] = None
    return list(done)


def places_in_schedule(layout: Layout, *, trains: bool) -> list[dict[Any, int]]:
    """Return for each replica the place of (pass, stage, micro-batch) in its device's order."""
    schedule = schedule_for if trains else forward_schedule_for
    return [
        {
            (task.kind, task.stage, task.micro_batch): place
            for order in schedule(replica).orders
            for place, task in enumerate(order)
        }
        for replica in layout.replicas
    ]


def pass_of(passes: Sequence[str]) -> str:
    """Return the pass of a task of nodes: where both are one task, it begins with the forward."""
    return FORWARD if FORWARD in passes else BACKWARD if BACKWARD in passes else passes[0]
