"""What is in memory in a step, where, and from when to when.

      stage 0   F0 F1 B0 F2 B1 B2
      kept      [ 0     ]
                   [ 1        ]         what F gives and B needs, of one micro-batch
      loan      [ stage 0         ]     weights of other owners, while it is the stage's turn
      sum             [ gradients ]     and, while a task adds to it, the sum of before

Times are those of the schedule's timeline, so that only their order means something. What a
task needs only while it runs is not among them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from evener.engine.ownership import device_name
from evener.engine.staged.stages.cut import CutFunction
from evener.engine.staged.stages.functions import CutReplica
from evener.engine.staged.stages.gradients import StageGradient
from evener.engine.staged.stages.trace import flat
from evener.plan import Replica, Task, TaskKind, TimedTask, schedule_for, timeline

# What gives its input on, under another shape or name, and takes no memory.
_ALIASES = frozenset({
    "EnsureShape", "ExpandDims", "Identity", "PreventGradient", "Reshape", "Squeeze",
    "StopGradient",
})  # fmt: skip
# A backward pass is about two forward passes.
_SECONDS: dict[TaskKind, float] = {"forward": 1.0, "backward": 2.0, "weights": 1.0}


class Lifetime(NamedTuple):
    """Bytes on a device, of one kind, from one time to another."""

    device: str
    kind: str
    begin: float
    end: float
    num_bytes: int


@dataclass(slots=True)
class _Value:
    """One tensor of one micro-batch: where and when it is made and used.

    Attributes:
        num_bytes: Its size.
        made: The device and the task; None for what the step is given.
        used: For each device when it is sent there if no task made it, and the end of the last
            task that uses it.
    """

    num_bytes: int
    made: tuple[str, TimedTask] | None = None
    used: dict[str, tuple[float, float]] = field(default_factory=dict)

    def is_made(self, event: TimedTask, device: str) -> None:
        """Note a task that gives it, as its own or as it came."""
        if self.made is None or event.begin_seconds < self.made[1].begin_seconds:
            self.made = device, event

    def is_used(self, device: str, begin: float, end: float) -> None:
        """Note a task that is given it, and when it is sent where the step was given it."""
        first, last = self.used.get(device, (begin, end))
        self.used[device] = (min(first, begin), max(last, end))

    def lifetimes(self) -> Iterator[Lifetime]:
        """Yield when it is where it was made, and wherever it is needed."""
        home, event = self.made or (None, None)
        for device in {*self.used, home} - {None}:
            assert device is not None
            first, last = self.used.get(device, (math.inf, 0.0))
            if event is None:
                begin, end = first, last
            elif device == home:
                begin, end = event.begin_seconds, max(event.end_seconds, last)
            else:
                begin, end = event.end_seconds, last
            yield Lifetime(device, "activations", begin, end, self.num_bytes)


class Lifetimes:
    """Of what one replica has in memory in a training step.

    Args:
        cut: The functions of its stages.
        replica: Says the schedule, and the device of each stage.
        trainable: The trained Keras variables.
        micro_batch_size: Samples of the largest micro-batch; stands in for every size that is
            unknown, so sequences of unknown length are not counted right.
    """

    def __init__(
        self, cut: CutReplica, replica: Replica, trainable: Sequence[Any], micro_batch_size: int
    ) -> None:
        self._cut = cut
        self._trainable = trainable
        self._size = micro_batch_size
        self._devices = [stage.device for stage in replica.stages]
        schedule = schedule_for(replica)
        times = timeline(schedule, _SECONDS)
        self._end = times.makespan
        self._orders = [
            [event for event in order if self._functions(event.task)] for order in times.events
        ]
        self._static = {id(tensor) for tensor in cut.trace.inputs[: cut.num_static]}

    def all(self) -> Iterator[Lifetime]:
        """Yield all of them, in no order."""
        yield from self._loans()
        yield from self._gradients()
        yield from self._values()

    def _functions(self, task: Task) -> CutFunction | None:
        """Return what a task calls."""
        stage = self._cut.stages[task.stage]
        by_kind = {
            "forward": stage.forward,
            "backward": stage.backward,
            "weights": stage.weight_gradients,
        }
        return by_kind[task.kind]

    def _loans(self) -> Iterator[Lifetime]:
        """A stage's weights stay as long as the device computes nothing else."""
        for order in self._orders:
            number = 0
            for stage, turn in itertools.groupby(order, key=lambda event: event.task.stage):
                *_, last = events = list(turn)
                device = self._devices[stage]
                lent = sum(
                    _variable_bytes(self._trainable[k])
                    for k in self._cut.weights_of(self._cut.stages[stage])
                    if _owner(self._trainable[k]) != device
                )
                begin = _moving_since(order, number)
                yield Lifetime(device, "borrowed", begin, last.end_seconds, lent)
                number += len(events)

    def _gradients(self) -> Iterator[Lifetime]:
        """A sum grows until its last task, and moves to its owner during the next one."""
        for order in self._orders:
            by_stage: dict[int, list[TimedTask]] = {}
            moved: dict[int, float] = {}
            for event, following in itertools.zip_longest(order, order[1:]):
                stage = event.task.stage
                if event.task.kind == self._last_kind(stage):
                    by_stage.setdefault(stage, []).append(event)
                    moved[stage] = self._end if following is None else following.end_seconds
            for stage, events in by_stage.items():
                yield from self._sums(stage, events, moved[stage])

    def _last_kind(self, stage: int) -> TaskKind:
        return "backward" if self._cut.stages[stage].weight_gradients is None else "weights"

    def _sums(self, stage: int, events: Sequence[TimedTask], moved: float) -> Iterator[Lifetime]:
        gradient, device = self._cut.stages[stage].gradient, self._devices[stage]
        begin, end = events[0].begin_seconds, events[-1].end_seconds
        made = 0
        for position, one in () if gradient is None else gradient.weights:
            if not isinstance(one, tf.Tensor):
                continue
            owner = _owner(self._trainable[position])
            num_bytes = _variable_bytes(self._trainable[position])
            made += num_bytes
            until = self._end if owner == device else moved
            yield Lifetime(device, "gradients", begin, until, num_bytes)
            if owner != device:
                yield Lifetime(owner, "gradients", end, self._end, num_bytes)
        for event in events[1:]:
            yield Lifetime(device, "gradients", event.begin_seconds, event.end_seconds, made)

    def _values(self) -> Iterator[Lifetime]:
        """What the tasks of a micro-batch give each other, and what they are given."""
        by_micro_batch: dict[int, dict[int, _Value]] = {}
        for order in self._orders:
            for number, event in enumerate(order):
                values = by_micro_batch.setdefault(event.task.micro_batch, {})
                self._enter(event, values, _moving_since(order, number))
        for values in by_micro_batch.values():
            for tensor in flat(self._cut.trace.outputs):
                value = values.get(id(_root(tensor)))
                if value is not None and value.made is not None:
                    home, event = value.made
                    value.used[home] = (event.begin_seconds, self._end)
            for value in values.values():
                yield from value.lifetimes()

    def _enter(self, event: TimedTask, values: dict[int, _Value], begin: float) -> None:
        """Enter what a task is given and what it gives.

        Args:
            event: The task.
            values: All of its micro-batch so far; grows.
            begin: When samples that it needs begin to move.
        """
        function = self._functions(event.task)
        gradient = self._cut.stages[event.task.stage].gradient
        assert function is not None
        device = self._devices[event.task.stage]
        of_weights = _of_weights(gradient)
        begins = {id(place): tensor for tensor, place in gradient.begins} if gradient else {}
        for tensor in function.fetches:
            if id(tensor) not in of_weights and self._is_moving(tensor):
                self._value(tensor, values).is_made(event, device)
        for tensor in function.feeds:
            parts = self._gradients_at(begins[id(tensor)]) if id(tensor) in begins else []
            # One part is given on as it is.
            for one in parts if len(parts) == 1 else [*parts, tensor]:
                if id(one) not in of_weights and self._is_moving(one):
                    self._value(one, values).is_used(device, begin, event.end_seconds)

    def _is_moving(self, tensor: tf.Tensor) -> bool:
        """Return whether a tensor is of a micro-batch, and not a weight or state."""
        return id(_root(tensor)) not in self._static

    def _value(self, tensor: tf.Tensor, values: dict[int, _Value]) -> _Value:
        root = _root(tensor)
        return values.setdefault(id(root), _Value(num_bytes=_num_bytes(root, self._size)))

    def _gradients_at(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """Return what the stages that were given a tensor hand back."""
        return [
            part
            for stage in self._cut.stages
            if stage.gradient is not None
            for received, part in stage.gradient.inputs
            if received is tensor
        ]


def _of_weights(gradient: StageGradient | None) -> set[int]:
    """Return the identities of gradients of weights, and of the sums that they go into."""
    if gradient is None:
        return set()
    gradients = flat([one for _, one in gradient.weights])
    sums = [tensor for _, place, total in gradient.sums for tensor in (place, total)]
    return {id(tensor) for tensor in (*gradients, *sums)}


def _moving_since(order: Sequence[TimedTask], number: int) -> float:
    """Return when what comes from the host for a task begins to move: with the task before."""
    return order[number - 1].begin_seconds if number > 1 else 0.0


def _root(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor whose memory a tensor shares."""
    while tensor.op.type in _ALIASES:
        tensor = tensor.op.inputs[0]
    return tensor


def _num_bytes(tensor: tf.Tensor, micro_batch_size: int) -> int:
    if tensor.shape.rank is None:
        return 0
    return tensor.dtype.size * math.prod(
        micro_batch_size if n is None else n for n in tensor.shape.as_list()
    )


def _owner(variable: Any) -> str:
    return device_name(variable.value.device)


def _variable_bytes(variable: Any) -> int:
    return tf.as_dtype(variable.dtype).size * math.prod(variable.shape)
