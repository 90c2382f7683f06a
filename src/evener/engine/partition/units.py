"""Units of a step in order: calls of tasks for each micro-batch, and of tasks computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evener.engine.partition.function_arguments import Argument, NumberArgument, TensorArgument
from evener.engine.partition.tasks import Partition, Task, TaskFunction
from evener.engine.pipeline.order import Turn, Unit, order_units, pass_of, positions_in_schedule
from evener.engine.pipeline.passes import FORWARD
from evener.graph.dims import symbol, symbols_of, symbols_of_step
from evener.graph.nodes import Tensor
from evener.ops.states import Numbers, Sharded, State, serves


def units_of(partition: Partition, functions: Sequence[TaskFunction]) -> list[Unit]:
    """Return the calls of a step, in an order in which they can be made.

    Where stages or micro-batches share a device, it is the order of the plan's schedule.

    Args:
        partition: Step in tasks.
        functions: Functions of its tasks, in order.
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
    return order_units(before, _turns(partition, tasks))


def _turns(partition: Partition, tasks: Sequence[Task]) -> dict[Unit, Turn]:
    layout = partition.layout
    trains = any(name != FORWARD for name in partition.staged.passes.values())
    positions = positions_in_schedule(layout, trains=trains)
    turns: dict[Unit, Turn] = {}
    for number, task in enumerate(tasks):
        if not task.is_parts:
            continue
        name = pass_of([partition.staged.passes[node] for node in task.nodes])
        for index, micro_batch in enumerate(layout.micro_batches):
            stage = task.place.stages[micro_batch.replica]
            position = positions[micro_batch.replica].get((name, stage, micro_batch.number))
            if position is None:  # The schedule does not separate the gradients of weights.
                position = positions[micro_batch.replica]["backward", stage, micro_batch.number]
            device = layout.device(index, task.place.stages)
            turns[Unit(number, index)] = Turn(device, position, micro_batch.replica, task.level)
    return turns


def needs_of(partition: Partition, function: TaskFunction) -> Iterator[tuple[Task, bool]]:
    """Yield the tasks that a call waits for, and whether only for calls of its micro-batch.

    Args:
        partition: Step in tasks.
        function: Function that is called.
    """
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


def tasks_needed_by(partition: Partition, function: TaskFunction) -> set[Task]:
    """Return the tasks that a function waits for."""
    return {task for task, _ in needs_of(partition, function)}


def sources_of(
    partition: Partition, argument: Argument
) -> Iterator[tuple[Tensor, State | Numbers | None]]:
    """Yield the tensors that an argument is made of, each with the state that is needed."""
    names: set[str] = set()
    if isinstance(argument, NumberArgument):
        names.add(argument.name)
    elif isinstance(argument, TensorArgument):
        if argument.tensor.is_sizes:
            for size in argument.tensor.value or ():
                names |= symbols_of(size)
        else:
            yield argument.tensor, argument.state
        if isinstance(argument.state, Sharded):
            names |= symbols_of(argument.state.rows)
    for name in {source for given in names for source in symbols_of_step(symbol(given))}:
        yield partition.inference.symbols[name].tensor, None
