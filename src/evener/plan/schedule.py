"""Schedules of pipelines: the order of tasks on each device, and their timeline.

A replica of a plan comes in; its stages and micro-batches become tasks, in one order per device.
With the seconds of the tasks, the order gives the begin and end of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from evener.plan.parts import Replica, ScheduleName

# Tasks of a replica, each one pass of one micro-batch through one stage.

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


# Task orders with a closed form: one stage per device, and interleaved stages.
#
# In the drawings a letter and a digit are a task and its micro-batch, a dot is idle time, and
# all tasks take the same time.


def gpipe_order(*, stage: int, num_micro_batches: int, in_flight: int) -> Iterator[Task]:
    """Yield the tasks of a stage by GPipe, in waves of ``in_flight`` micro-batches.

    All forwards of a wave, then all its backwards, the last micro-batch first::

        stage 0    F0 F1 F2 F3 .  .  .  .  B3 B2 B1 B0
        stage 1    .  F0 F1 F2 F3 .  .  B3 B2 B1 B0 .
        stage 2    .  .  F0 F1 F2 F3 B3 B2 B1 B0 .  .

    Source: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline
    Parallelism, 2019, figure 2c. There all micro-batches are one wave.
    """
    for begin in range(0, num_micro_batches, in_flight):
        wave = range(begin, min(begin + in_flight, num_micro_batches))
        yield from (Task("forward", stage, k) for k in wave)
        yield from (Task("backward", stage, k) for k in reversed(wave))


def one_f_one_b_order(*, stage: int, num_micro_batches: int, in_flight: int) -> Iterator[Task]:
    """Yield the tasks of a stage by 1F1B: forwards up to the limit, then B and F alternate.

    ::

        stage 0    F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
        stage 1    .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .
        stage 2    .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .

    Source: Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training,
    2019, section 3.2; with the flush after every step of Narayanan et al., Memory-Efficient
    Pipeline-Parallel DNN Training, 2021, section 3.2 (PipeDream-Flush).
    """
    num_ahead = min(live_limit(stage, in_flight), num_micro_batches)
    yield from (Task("forward", stage, k) for k in range(num_ahead))
    for k in range(num_micro_batches):
        yield Task("backward", stage, k)
        if num_ahead + k < num_micro_batches:
            yield Task("forward", stage, num_ahead + k)


def zero_bubble_order(*, stage: int, num_micro_batches: int, in_flight: int) -> Iterator[Task]:
    """Yield the tasks of a stage by ZB-H1: 1F1B with deferred weight gradients.

    Stage s is s backwards ahead of its weight gradients; the remaining ones fill the idle time of
    1F1B at the end::

        stage 0    F0 F1 F2 .  .  B0 W0 F3 B1 W1 B2 W2 B3 W3
        stage 1    .  F0 F1 .  B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
        stage 2    .  .  F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

    A micro-batch stays alive until its weight gradient is computed, so a stage holds up to
    ``in_flight`` micro-batches, as stage 0 does in 1F1B. With p stages and p in flight, a device
    is idle for (p - 1)(F + B - W), where F, B and W are the task times, if W is at most F and B.

    Source: Qi, Wan, Huang, Lin: Zero Bubble Pipeline Parallelism, 2023, section 3.1.
    """
    num_deferred = min(stage, in_flight - 1)
    for task in one_f_one_b_order(
        stage=stage, num_micro_batches=num_micro_batches, in_flight=in_flight
    ):
        yield task
        if task.kind == "backward" and task.micro_batch >= num_deferred:
            yield Task("weights", stage, task.micro_batch - num_deferred)
    for k in range(max(0, num_micro_batches - num_deferred), num_micro_batches):
        yield Task("weights", stage, k)


def interleaved_order(
    *, rank: int, num_devices: int, num_rounds: int, num_micro_batches: int
) -> Iterator[Task]:
    """Yield the tasks of a device that has every ``num_devices``-th stage.

    The stages of a device are its chunks. A group of ``num_devices`` micro-batches goes through
    chunk 0, then through chunk 1, and so on; then the next group. With 2 devices and
    2 rounds (stages 0 and 2 on device 0, stages 1 and 3 on device 1; micro-batch.stage)::

        device 0   F0.0 F1.0 F0.2 F1.2  .   F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 ...
        device 1    .   F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 ...

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM, 2021, section 2.2.
    """
    num_tasks = num_micro_batches * num_rounds
    num_ahead = min(2 * (num_devices - rank - 1) + (num_rounds - 1) * num_devices, num_tasks)

    def chunk_and_micro_batch(index: int) -> tuple[int, int]:
        group, within = divmod(index, num_devices * num_rounds)
        chunk, member = divmod(within, num_devices)
        return chunk, group * num_devices + member

    def forward(index: int) -> Task:
        chunk, micro_batch = chunk_and_micro_batch(index)
        return Task("forward", rank + chunk * num_devices, micro_batch)

    def backward(index: int) -> Task:
        chunk, micro_batch = chunk_and_micro_batch(index)
        return Task("backward", rank + (num_rounds - 1 - chunk) * num_devices, micro_batch)

    yield from (forward(index) for index in range(num_ahead))
    for index in range(num_tasks):
        if num_ahead + index < num_tasks:
            yield forward(num_ahead + index)
        yield backward(index)


def live_limit(stage: int, in_flight: int) -> int:
    """Return the most live micro-batches of a 1F1B stage.

    >>> [live_limit(stage, 3) for stage in range(5)]
    [3, 2, 1, 1, 1]
    """
    return max(1, in_flight - stage)


# Orders for replicas in which several stages share a device, by simulation.
#
# Greedy list scheduling: every task takes one tick, and at each tick every device begins the best
# of
# the tasks that it can begin. The sequence in which a device begins its tasks is its order.
#
# ::
#
#     stages on a, b, a; 1F1B with 3 in flight (micro-batch.stage)
#
#     tick     0    1    2    3    4    5    6    7    8    9
#     a      F0.0 F1.0 F0.2 B0.2 F1.2 B1.2 B0.0 B1.0 F2.0 ...
#     b       .   F0.1 F1.1  .   B0.1  .   B1.1  .    .   F2.1 ...
#
# There is no deadlock. Micro-batches pass every stage in the same order, so no stage that the
# oldest
# live micro-batch needs is full of later ones: its next task can begin, or a stage is full of
# micro-batches that wait only for their weight gradients, which can begin.

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
    """Return one order of tasks per device."""
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


# Schedule of a replica: the order of tasks on each device.
#
# ::
#
#     stages on                       1f1b            gpipe           zero_bubble
#     separate devices                1F1B            GPipe           ZB-H1             orders.py
#     devices in turns, a b a b       interleaved     merged          merged            orders.py
#     shared in any other way         merged          merged          merged            merging.py
#
# A schedule has no times: each device runs its tasks one after the other, each as soon as its
# dependencies have ended.

_ORDERS = {
    "1f1b": one_f_one_b_order,
    "gpipe": gpipe_order,
    "zero_bubble": zero_bubble_order,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Tasks of a replica, in one order per device.

    Args:
        devices: Distinct device names, in the order of their first stages.
        orders: Tasks of each device, in order.
    """

    devices: tuple[str, ...]
    orders: tuple[tuple[Task, ...], ...]

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return 1 + max(task.stage for order in self.orders for task in order)

    def __str__(self) -> str:
        """Return one line per device, with tasks as ``F<micro-batch>.<stage>``."""
        width = max(map(len, self.devices))
        return "\n".join(
            f"{device:{width}}  {' '.join(map(str, order))}"
            for device, order in zip(self.devices, self.orders, strict=True)
        )


def schedule_for(replica: Replica) -> Schedule:
    """Return the schedule of a training step.

    At most ``in_flight`` micro-batches are alive in the replica at once, from the start of their
    forward pass to the end of their backward pass in stage 0, whatever the times of the tasks. Of
    these, a stage s holds at most

    - ``max(1, in_flight - s)`` under ``"1f1b"``, and ``in_flight`` if it is interleaved;
    - ``in_flight`` under ``"gpipe"``;
    - ``max(1, in_flight - s)`` under ``"zero_bubble"``, or ``in_flight`` including those that wait
      for their weight gradients.

    Under ``"1f1b"`` the interleaved order is used if the stages go round two or more devices at
    least twice, the number of micro-batches is a multiple of the number of devices, and
    ``in_flight`` is at least twice the number of devices, or all micro-batches.

    Args:
        replica: Valid replica of a plan.

    Returns:
        The schedule; every stage has a forward and a backward task for each micro-batch,
        under ``"zero_bubble"`` a weights task too.

    >>> from evener.plan import Stage
    >>> stages = (Stage(device="gpu:0", layers=("a",)), Stage(device="gpu:1", layers=("b",)))
    >>> print(schedule_for(Replica(share=1, stages=stages, num_micro_batches=3, in_flight=2)))
    gpu:0  F0.0 F1.0 B0.0 F2.0 B1.0 B2.0
    gpu:1  F0.1 B0.1 F1.1 B1.1 F2.1 B2.1
    """
    devices, stages_of_devices = _stages_of_devices(replica)
    if len(devices) == len(replica.stages):
        order = _ORDERS[replica.schedule]
        orders = tuple(
            tuple(
                order(
                    stage=stage,
                    num_micro_batches=replica.num_micro_batches,
                    in_flight=replica.in_flight,
                )
            )
            for stage in range(len(devices))
        )
    elif _is_interleaved(replica, len(devices)):
        orders = tuple(
            tuple(
                interleaved_order(
                    rank=rank,
                    num_devices=len(devices),
                    num_rounds=len(replica.stages) // len(devices),
                    num_micro_batches=replica.num_micro_batches,
                )
            )
            for rank in range(len(devices))
        )
    else:
        orders = merged_orders(replica, stages_of_devices)
    return Schedule(devices=devices, orders=orders)


def forward_schedule_for(replica: Replica) -> Schedule:
    """Return the schedule of evaluation, which has only forward passes.

    Each device computes the micro-batches in order, and each micro-batch in the order of its
    stages. Nothing is saved for a backward pass, so ``schedule`` and ``in_flight`` are ignored.

    >>> from evener.plan import Stage
    >>> stages = [Stage(device=name, layers=(name,)) for name in ("cpu:0", "cpu:1", "cpu:0")]
    >>> print(forward_schedule_for(Replica(share=1, stages=stages, num_micro_batches=2)))
    cpu:0  F0.0 F0.2 F1.0 F1.2
    cpu:1  F0.1 F1.1
    """
    devices, stages_of_devices = _stages_of_devices(replica)
    orders = tuple(
        tuple(
            Task("forward", stage, micro_batch)
            for micro_batch in range(replica.num_micro_batches)
            for stage in stages
        )
        for stages in stages_of_devices
    )
    return Schedule(devices=devices, orders=orders)


def _stages_of_devices(replica: Replica) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    stages: dict[str, list[int]] = {}
    for number, stage in enumerate(replica.stages):
        stages.setdefault(stage.device, []).append(number)
    return tuple(stages), tuple(map(tuple, stages.values()))


def _is_interleaved(replica: Replica, num_devices: int) -> bool:
    names = [stage.device for stage in replica.stages]
    num_micro_batches = replica.num_micro_batches
    return (
        replica.schedule == "1f1b"
        and num_devices > 1
        and len(names) % num_devices == 0
        and names == names[:num_devices] * (len(names) // num_devices)
        and num_micro_batches % num_devices == 0
        and replica.in_flight >= min(num_micro_batches, 2 * num_devices)
    )


# Timeline of a schedule, from the seconds of its tasks.
#
# ::
#
#     order of a device     ... F3 | B1 | ...      B1 begins when F3 has ended on this device,
#                                                  and F1 here and B1 of the next stage have.
#
# It is deterministic: the same schedule and seconds give the same timeline.

Seconds = Callable[[Task], float] | Mapping[TaskKind, float]
"""Seconds of a task, 0 or more: a function of the task, or a mapping from its kind."""

Transfer = Callable[[Task, Task], float]
"""Transfer seconds from the end of a task to the start of a dependent one."""

_Span = tuple[float, float]


class TimedTask(NamedTuple):
    """Task with its start and end, in seconds since the start of the first task."""

    task: Task
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Times of the tasks of a schedule.

    Args:
        events: Tasks of each device with their times, in order.
        makespan: Seconds from the start of the first task to the end of the last.
        bubble: Fraction of all devices' time in the makespan in which they are idle.
        peak_live: Most live micro-batches of each stage: from the start of their forward to the end
            of their last task there.
        peak_in_flight: Most micro-batches in flight: from the start of their forward to the end of
            their backward in stage 0; without backwards, to the end of their last forward.
    """

    events: tuple[tuple[TimedTask, ...], ...]
    makespan: float
    bubble: float
    peak_live: tuple[int, ...]
    peak_in_flight: int


def timeline(
    schedule: Schedule, seconds: Seconds, *, transfer: Transfer = lambda task, needed: 0.0
) -> Timeline:
    """Return the timeline in which every device runs its tasks as soon as it can.

    Args:
        schedule: Order of each device.
        seconds: Seconds of each task, 0 or more: a function of the task, or a mapping from its
            kind.
        transfer: Transfer seconds, 0 or more, as a function of a task and the dependency whose
            result it receives.

    >>> from evener.plan import Replica, Stage
    >>> from evener.schedule import schedule_for
    >>> stages = (Stage(device="gpu:0", layers=("a",)), Stage(device="gpu:1", layers=("b",)))
    >>> replica = Replica(share=1, stages=stages, num_micro_batches=4, in_flight=2)
    >>> times = timeline(schedule_for(replica), {"forward": 1.0, "backward": 2.0})
    >>> times.makespan, times.bubble, times.peak_live, times.peak_in_flight
    (15.0, 0.2, (2, 1), 2)
    """
    num_stages = schedule.num_stages
    events = _run(schedule, _by_task(seconds), num_stages, transfer)
    begins = {event.task: event.begin_seconds for device in events for event in device}
    ends = {event.task: event.end_seconds for device in events for event in device}
    makespan = max(ends.values())
    capacity = makespan * len(events)
    idle = capacity - sum(ends[task] - begins[task] for task in ends)
    live, in_flight = _spans(begins, ends, num_stages)
    return Timeline(
        events=events,
        makespan=makespan,
        bubble=max(0.0, idle) / capacity if capacity else 0.0,
        peak_live=tuple(map(_most_at_once, live)),
        peak_in_flight=_most_at_once(in_flight),
    )


def _by_task(seconds: Seconds) -> Callable[[Task], float]:
    if callable(seconds):
        return seconds
    by_kind = seconds
    return lambda task: by_kind[task.kind]


def _spans(
    begins: Mapping[Task, float], ends: Mapping[Task, float], num_stages: int
) -> tuple[list[list[_Span]], list[_Span]]:
    """Return the spans in which micro-batches are alive, per stage and in the replica."""
    live: list[list[_Span]] = [[] for _ in range(num_stages)]
    in_flight: list[_Span] = []
    for task, begin in begins.items():
        kind, stage, micro_batch = task
        if kind != "forward":
            continue
        backward = Task("backward", stage, micro_batch)
        weights = Task("weights", stage, micro_batch)
        live[stage].append((begin, ends.get(weights, ends.get(backward, ends[task]))))
        if stage == 0:
            last_forward = Task("forward", num_stages - 1, micro_batch)
            in_flight.append((begin, ends.get(backward, ends[last_forward])))
    return live, in_flight


def _run(
    schedule: Schedule,
    seconds: Callable[[Task], float],
    num_stages: int,
    transfer: Transfer,
) -> tuple[tuple[TimedTask, ...], ...]:
    """Run every device until it must wait, and resume it when the missing task has ended."""
    ends: dict[Task, float] = {}
    events: list[list[TimedTask]] = [[] for _ in schedule.orders]
    waiting: dict[Task, list[int]] = {}
    runnable = list(range(len(schedule.orders)))
    while runnable:
        device = runnable.pop()
        order, done = schedule.orders[device], events[device]
        now = done[-1].end_seconds if done else 0.0
        for task in order[len(done) :]:
            needed = dependencies(task, num_stages=num_stages)
            missing = next((other for other in needed if other not in ends), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(device)
                break
            begin = max([now, *(ends[other] + transfer(task, other) for other in needed)])
            now = begin + seconds(task)
            ends[task] = now
            done.append(TimedTask(task, begin, now))
            runnable += waiting.pop(task, ())
    assert not waiting, f"these tasks never end, and others wait for them: {list(waiting)}"
    return tuple(map(tuple, events))


def _most_at_once(spans: Iterable[_Span]) -> int:
    """Return the largest number of overlapping half-open spans."""
    # At equal times, ends come before starts.
    changes = sorted(change for begin, end in spans for change in ((begin, 1), (end, -1)))
    most = current = 0
    for _, change in changes:
        current += change
        most = max(most, current)
    return most
