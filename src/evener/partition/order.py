"""Order in which devices run the units of a step: tasks of a micro-batch, or computed once.

Every device follows the schedule of its replica (`evener.plan.schedule_for`). A reduction over
the batch in mid-model needs all micro-batches before one can go on; where the schedule would
wait for ever at such a barrier, the device takes the next unit that can run::

    stage 0    F0 F1 F2 F3 | F0 B0 F1 B1 F2 B2 F3 B3
                           ^ the mean of a BatchNormalization, of all micro-batches
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from evener.graph.dims import symbol, symbols_of, symbols_of_step
from evener.graph.functions import Argument, NumberArgument, TensorArgument
from evener.graph.nodes import Tensor
from evener.graph.ops.states import Numbers, Sharded, State, serves
from evener.partition.layout import Layout
from evener.partition.stage import BACKWARD, FORWARD
from evener.partition.tasks import Partition, StepTask, TaskFunction
from evener.plan.schedule import forward_schedule_for, schedule_for


class Unit(NamedTuple):
    """Call of a task for one micro-batch, or of a task that is computed once."""

    task: int  # Number of the task
    micro_batch: int | None  # Number of the micro-batch; None for a task that is computed once


class Turn(NamedTuple):
    device: str  # TensorFlow's name of the device
    position: int  # Position of the unit in its replica's schedule for the device
    replica: int  # Number of the replica
    level: int  # Level of its task, which waits for tasks of lower levels only


def order_units(before: Mapping[Unit, set[Unit]], turns: Mapping[Unit, Turn]) -> list[Unit]:
    """Return all units in an order in which they can run, and which each device follows."""
    queues: dict[str, list[Unit]] = defaultdict(list)
    for unit in sorted(turns, key=lambda unit: turns[unit][1:]):
        queues[turns[unit].device].append(unit)
    free = [unit for unit in before if unit not in turns]
    done: dict[Unit, None] = {}

    def can_run(unit: Unit) -> bool:
        return all(needed in done for needed in before[unit])

    while len(done) < len(before):
        ran = len(done)
        for unit in free:
            if can_run(unit):
                done[unit] = None
        free = [unit for unit in free if unit not in done]
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


def positions_in_schedule(layout: Layout, *, trains: bool) -> list[dict[Any, int]]:
    """Return for each replica the position of (pass, stage, micro-batch) in its device's order."""
    schedule = schedule_for if trains else forward_schedule_for
    return [
        {
            (task.kind, task.stage, task.micro_batch): position
            for order in schedule(replica).orders
            for position, task in enumerate(order)
        }
        for replica in layout.replicas
    ]


def pass_of(passes: Sequence[str]) -> str:
    """Return the pass of a task of nodes: where both are one task, it begins with the forward."""
    return FORWARD if FORWARD in passes else BACKWARD if BACKWARD in passes else passes[0]


def units_of(partition: Partition, functions: Sequence[TaskFunction]) -> list[Unit]:
    """Return the calls of a step, in an order in which they can be made.

    Where stages or micro-batches share a device, it is the order of the plan's schedule.
    """
    layout = partition.layout
    micro_batches = range(len(layout.micro_batches))
    tasks = [function.task for function in functions]
    units = [
        [Unit(number, micro_batch) for micro_batch in micro_batches]
        if task.is_parts
        else [Unit(number, None)]
        for number, task in enumerate(tasks)
    ]
    if not layout.is_scheduled:
        return [unit for of_task in units for unit in of_task]
    number_of = {task: number for number, task in enumerate(tasks)}
    before: dict[Unit, set[Unit]] = {}
    for number, function in enumerate(functions):
        needs = list(needs_of(partition, function))
        for unit in units[number]:
            before[unit] = set()
            for task, same_micro_batch in needs:
                others = units[number_of[task]]
                is_single = same_micro_batch and unit.micro_batch is not None
                before[unit].update([others[unit.micro_batch or 0]] if is_single else others)
    trains = any(name != FORWARD for name in partition.passes.values())
    positions = positions_in_schedule(layout, trains=trains)
    turns: dict[Unit, Turn] = {}
    for number, task in enumerate(tasks):
        passes = [partition.passes[node] for node in task.nodes if task.is_parts]
        for index, (replica, micro_batch) in enumerate(layout.micro_batches if passes else ()):
            order, key = positions[replica], (task.place.stages[replica], micro_batch)
            name = pass_of(passes)
            # The schedule may not separate the gradients of weights.
            position = order[name if (name, *key) in order else BACKWARD, *key]
            device = layout.device(index, task.place.stages)
            turns[Unit(number, index)] = Turn(device, position, replica, task.level)
    return order_units(before, turns)


def needs_of(partition: Partition, function: TaskFunction) -> Iterator[tuple[StepTask, bool]]:
    """Yield the tasks that a call waits for, and whether only for calls of its micro-batch."""
    task = function.task
    for argument in function.builder.arguments:
        for tensor, state in sources_of(partition, argument):
            other = partition.task_of.get(tensor.node)
            if other is None or other is task:
                continue
            held = partition.sharding.states[tensor]
            is_same = task.is_parts and other.is_parts
            yield other, is_same and state is not None and serves(held, state)
    for other in function.after:
        yield other, False


def sources_of(
    partition: Partition, argument: Argument
) -> Iterator[tuple[Tensor, State | Numbers | None]]:
    """Yield the tensors that an argument is made of, each with the state that is needed."""
    names: set[str] = set()
    if isinstance(argument, NumberArgument):
        names.add(argument.name)
    elif isinstance(argument, TensorArgument):
        if argument.tensor.is_sizes:
            names |= symbols_of(*(argument.tensor.value or ()))
        else:
            yield argument.tensor, argument.state
        if isinstance(argument.state, Sharded):
            names |= symbols_of(argument.state.rows)
    for name in sorted(symbols_of_step(*map(symbol, names))):
        yield partition.inference.symbols[name].tensor, None
