"""Schedules of pipelines: the order of tasks on each device, and their timeline.

A replica of a plan comes in. Each pass of a micro-batch through a stage is a task::

    stages on separate devices   1F1B or GPipe, in closed form   `_one_f_one_b`, `_gpipe`
    stages that share a device   merged by a simulation          `_Merging`

A schedule has no times: each device runs its tasks one after the other, each as soon as its
dependencies have ended. `timeline` adds the times. In the drawings a letter and a digit are a task
and its micro-batch, a dot is idle time, and all tasks take the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from evener.plan.parts import Replica

TaskKind = Literal["forward", "backward"]


class Task(NamedTuple):
    """One pass of one micro-batch through one stage.

    It is a tuple for speed: schedules have sets and mappings of thousands of tasks.

    Attributes:
        kind: Kind of the pass. ``"backward"`` computes the gradients of the stage's inputs and
            weights.
        stage: Stage number, from 0.
        micro_batch: Micro-batch number, from 0.
    """

    kind: TaskKind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        """Return the letter, the micro-batch and the stage of the task.

        >>> print(Task(kind="backward", stage=2, micro_batch=5))
        B5.2
        """
        return f"{self.kind[0].upper()}{self.micro_batch}.{self.stage}"


def dependencies(task: Task, *, num_stages: int) -> tuple[Task, ...]:
    """Return the tasks that must end before a task can begin.

    ::

        stage 0    F ──┬──────────► B
                       ▼            ▲
        stage 1        F ──┬──► B ──┘
                           ▼    ▲
        stage 2            F ───┘

    >>> [str(needed) for needed in dependencies(Task("backward", 1, 7), num_stages=3)]
    ['F7.1', 'B7.2']
    """
    kind, stage, micro_batch = task
    if kind == "forward":
        return (Task("forward", stage - 1, micro_batch),) if stage else ()
    own = Task("forward", stage, micro_batch)
    if stage + 1 == num_stages:
        return (own,)
    return own, Task("backward", stage + 1, micro_batch)


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
        width = max(map(len, self.devices))
        return "\n".join(
            f"{device:{width}}  {' '.join(map(str, order))}"
            for device, order in zip(self.devices, self.orders, strict=True)
        )


def schedule_for(replica: Replica) -> Schedule:
    """Return the schedule of a training step.

    At most ``in_flight`` micro-batches are alive in the replica at once, from the start of their
    forward pass to the end of their backward pass in stage 0, whatever the times of the tasks. Of
    these, a stage s holds at most ``max(1, in_flight - s)`` under ``"1f1b"``, and ``in_flight``
    under ``"gpipe"``.

    Args:
        replica: Valid replica of a plan.

    Returns:
        The schedule; every stage has a forward and a backward task for each micro-batch.

    >>> from evener.plan import Stage
    >>> stages = (Stage(device="gpu:0", layers=("a",)), Stage(device="gpu:1", layers=("b",)))
    >>> print(schedule_for(Replica(share=1, stages=stages, num_micro_batches=3, in_flight=2)))
    gpu:0  F0.0 F1.0 B0.0 F2.0 B1.0 B2.0
    gpu:1  F0.1 B0.1 F1.1 B1.1 F2.1 B2.1
    """
    stages = _stages_of_devices(replica)
    if len(stages) == len(replica.stages):
        order = _gpipe if replica.schedule == "gpipe" else _one_f_one_b
        count, in_flight = replica.num_micro_batches, replica.in_flight
        orders = [tuple(order(stage, count, in_flight)) for stage in range(len(stages))]
    else:
        orders = _Merging(replica).orders(list(stages.values()))
    return Schedule(devices=tuple(stages), orders=tuple(orders))


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
    stages_of_devices = _stages_of_devices(replica)
    orders = (
        tuple(
            Task("forward", stage, micro_batch)
            for micro_batch in range(replica.num_micro_batches)
            for stage in stages
        )
        for stages in stages_of_devices.values()
    )
    return Schedule(devices=tuple(stages_of_devices), orders=tuple(orders))


def _stages_of_devices(replica: Replica) -> dict[str, list[int]]:
    stages: dict[str, list[int]] = {}
    for number, stage in enumerate(replica.stages):
        stages.setdefault(stage.device, []).append(number)
    return stages


def _gpipe(stage: int, num_micro_batches: int, in_flight: int) -> Iterator[Task]:
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


def _one_f_one_b(stage: int, num_micro_batches: int, in_flight: int) -> Iterator[Task]:
    """Yield the tasks of a stage by 1F1B: forwards up to the limit, then B and F alternate.

    ::

        stage 0    F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
        stage 1    .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .
        stage 2    .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .

    Source: Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training,
    2019, section 3.2; with the flush after every step of Narayanan et al., Memory-Efficient
    Pipeline-Parallel DNN Training, 2021, section 3.2 (PipeDream-Flush).
    """
    num_ahead = min(max(1, in_flight - stage), num_micro_batches)
    yield from (Task("forward", stage, k) for k in range(num_ahead))
    for k in range(num_micro_batches):
        yield Task("backward", stage, k)
        if num_ahead + k < num_micro_batches:
            yield Task("forward", stage, num_ahead + k)


class _Merging:
    """Orders for replicas in which several stages share a device, by simulation.

    Greedy list scheduling: every task takes one tick, and at each tick every device begins the best
    of the tasks that it can begin::

        stages on a, b, a; 1F1B with 3 in flight (micro-batch.stage)

        tick     0    1    2    3    4    5    6    7    8    9
        a      F0.0 F1.0 F0.2 B0.2 F1.2 B1.2 B0.0 B1.0 F2.0 ...
        b       .   F0.1 F1.1  .   B0.1  .   B1.1  .    .   F2.1 ...

    There is no deadlock: micro-batches pass every stage in the same order, so no stage that the
    oldest live micro-batch needs is full of later ones, and its next task can begin.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._is_gpipe = replica.schedule == "gpipe"
        self._ended: set[Task] = set()
        self._begun: list[dict[TaskKind, int]] = [
            {"forward": 0, "backward": 0} for _ in replica.stages
        ]

    def orders(self, stages_of_devices: Sequence[Sequence[int]]) -> list[tuple[Task, ...]]:
        orders: list[list[Task]] = [[] for _ in stages_of_devices]
        num_left = 2 * len(self._replica.stages) * self._replica.num_micro_batches
        while num_left:
            # All devices choose before any task of this tick ends.
            chosen = [self._best(stages) for stages in stages_of_devices]
            for order, task in zip(orders, chosen, strict=True):
                if task is not None:
                    order.append(task)
                    self._begun[task.stage][task.kind] += 1
                    self._ended.add(task)
                    num_left -= 1
            assert any(chosen), f"no task can begin: {self._replica}"
        return [tuple(order) for order in orders]

    def _best(self, stages: Sequence[int]) -> Task | None:
        """Return the task that a device with these stages begins, or None if it must wait.

        1F1B prefers backwards, and of one kind the deepest stage, so that micro-batches finish
        early. GPipe keeps all forwards of a wave anyway: there the first stage comes first, because
        the other devices wait for it.
        """
        kinds: tuple[TaskKind, ...] = ("backward", "forward")
        for kind in reversed(kinds) if self._is_gpipe else kinds:
            is_shallow_first = self._is_gpipe and kind == "forward"
            for stage in stages if is_shallow_first else reversed(stages):
                number = self._begun[stage][kind]
                if number < self._replica.num_micro_batches and self._is_allowed(kind, stage):
                    if self._is_gpipe and kind == "backward":
                        wave = self._wave(number)
                        number = wave[-1] - (number - wave[0])
                    task = Task(kind, stage, number)
                    needed = dependencies(task, num_stages=len(self._replica.stages))
                    if self._ended.issuperset(needed):
                        return task
        return None

    def _is_allowed(self, kind: TaskKind, stage: int) -> bool:
        forwards, backwards = self._begun[stage].values()
        if self._is_gpipe:
            if kind == "forward":
                return backwards >= self._wave(forwards)[0]
            return forwards > self._wave(backwards)[-1]
        return kind == "backward" or forwards - backwards < max(1, self._replica.in_flight - stage)

    def _wave(self, number: int) -> range:
        begin = number - number % self._replica.in_flight
        return range(begin, min(begin + self._replica.in_flight, self._replica.num_micro_batches))


Seconds = Callable[[Task], float] | Mapping[TaskKind, float]
"""Seconds of a task, 0 or more: a function of the task, or a mapping from its kind."""

Transfer = Callable[[Task, Task], float]
"""Transfer seconds from the end of a task to the start of a dependent one."""


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

    ::

        order of a device     ... F3 | B1 | ...      B1 begins when F3 has ended on this device,
                                                     and F1 here and B1 of the next stage have.

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
    begins: dict[Task, float] = {}
    ends: dict[Task, float] = {}
    events: list[list[TimedTask]] = [[] for _ in schedule.orders]
    # Every device runs until it must wait, and goes on when the missing task has ended.
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
            now = begin + (seconds(task) if callable(seconds) else seconds[task.kind])
            begins[task], ends[task] = begin, now
            done.append(TimedTask(task, begin, now))
            runnable += waiting.pop(task, ())
    assert not waiting, f"these tasks never end, and others wait for them: {list(waiting)}"
    makespan = max(ends.values())
    capacity = makespan * len(events)
    idle = capacity - sum(ends[task] - begins[task] for task in ends)
    live: list[list[tuple[float, float]]] = [[] for _ in range(num_stages)]
    in_flight: list[tuple[float, float]] = []
    for task, begin in begins.items():
        kind, stage, micro_batch = task
        if kind == "forward":
            backward = Task("backward", stage, micro_batch)
            live[stage].append((begin, ends.get(backward, ends[task])))
            if stage == 0:
                last_forward = Task("forward", num_stages - 1, micro_batch)
                in_flight.append((begin, ends.get(backward, ends[last_forward])))
    return Timeline(
        events=tuple(map(tuple, events)),
        makespan=makespan,
        bubble=max(0.0, idle) / capacity if capacity else 0.0,
        peak_live=tuple(map(_most_at_once, live)),
        peak_in_flight=_most_at_once(in_flight),
    )


def _most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return the largest number of overlapping half-open spans."""
    # At equal times, ends come before starts.
    changes = sorted(change for begin, end in spans for change in ((begin, 1), (end, -1)))
    most = current = 0
    for _, change in changes:
        current += change
        most = max(most, current)
    return most
