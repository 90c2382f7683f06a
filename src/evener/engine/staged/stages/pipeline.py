"""Runs the stages of one replica over its micro-batches, in the order of a schedule.

      gpu:0   F0 F1 B0 F2 B1 F3 B2 B3
      gpu:1      F0B0 F1B1 F2B2 F3B3

Each task is one call. On every device a call waits for the one before it, so that no more
micro-batches are alive than the schedule allows; between devices calls wait for data alone.
Large gradients of weights are added up behind the call that gives them, before the next call
that gives gradients there: two sets of them are alive at most.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.engine.staged.reduction import Gradient, free_from_order
from evener.engine.staged.stages.cut import CutFunction
from evener.engine.staged.stages.functions import CutReplica
from evener.engine.staged.stages.gradients import StageGradient
from evener.engine.staged.stages.loans import Loans, deliver
from evener.plan import Schedule, Task, dependencies

Begin = Callable[[int, tf.Tensor], tf.Tensor | None]
"""Micro-batch and output of the trace -> the gradient that begins there, or None."""


class Pipeline:
    """One replica at work in one step.

    Args:
        cut: The functions of its stages.
        devices: TensorFlow's name of each stage's device.
        variables: The trained variables, in the order of the trace's first inputs.
        inputs: For each micro-batch, the trace's other inputs, flat.
        begin: Gives the gradients that begin at the outputs; None for a forward pass.
    """

    def __init__(
        self,
        cut: CutReplica,
        devices: Sequence[str],
        variables: Sequence[Any],
        inputs: Sequence[Sequence[tf.Tensor]],
        begin: Begin | None = None,
    ) -> None:
        self._stages = cut.stages
        self._devices = devices
        self._variables = variables
        self._inputs = inputs
        self._begin = begin
        self._position = {id(t): k for k, t in enumerate(cut.trace.inputs)}
        self._num_weights = len(variables)
        needed = [cut.weights_of(stage) for stage in cut.stages]
        self._loans = {d: Loans(d, variables, needed) for d in dict.fromkeys(devices)}
        # The calls of each device, in their order.
        self._calls: dict[str, list[tf.Operation]] = {d: [] for d in self._loans}
        # What adds the large gradients of the last call of each device that gave any.
        self._additions: dict[str, list[tf.Operation]] = {d: [] for d in self._loans}
        # Tensors of the trace -> their value, and gradient parts, for each micro-batch.
        self._values: list[dict[int, tf.Tensor]] = [{} for _ in inputs]
        self._d_values: list[dict[int, list[tf.Tensor]]] = [{} for _ in inputs]
        self._sums: dict[tuple[int, int], tf.Tensor] = {}
        self._slices: list[tuple[int, Gradient]] = []
        self._num_static = cut.num_static
        # Micro-batch, position of the input, device -> what was delivered there.
        self._delivered: dict[tuple[int, int, str], tf.Tensor] = {}

    def run(self, schedule: Schedule) -> None:
        """Run all tasks of a schedule."""
        remaining = Counter(task.stage for order in schedule.orders for task in order)
        for task in _in_order(schedule):
            if task.kind == "forward":
                self._forward(task)
            elif task.kind == "backward":
                self._backward(task)
            else:
                self._weight_gradients(task, self._stages[task.stage].weight_gradients)
            remaining[task.stage] -= 1
            if not remaining[task.stage]:
                self._give_back(task.stage)

    def outputs(self, micro_batch: int, nest: Any) -> Any:
        """Return the outputs of the trace for one micro-batch, in their structure."""
        values = self._values[micro_batch]
        return tf.nest.map_structure(
            lambda t: None if t is None else values[id(t)], nest, expand_composites=True
        )

    def gradients(self) -> list[list[Gradient]]:
        """Return for each trained variable the parts of its gradient."""
        parts: list[list[Gradient]] = [[] for _ in self._variables]
        for (_, position), total in self._sums.items():
            parts[position].append(total)
        for position, gradient in self._slices:
            parts[position].append(gradient)
        return parts

    def _forward(self, task: Task) -> None:
        function = self._stages[task.stage].forward
        results = self._call(function, task)
        self._values[task.micro_batch].update(
            (id(t), value) for t, value in zip(function.fetches, results, strict=True)
        )

    def _backward(self, task: Task) -> None:
        stage = self._stages[task.stage]
        if stage.backward is None or stage.gradient is None:
            return
        with tf.device(self._devices[task.stage]):
            for tensor, place in stage.gradient.begins:
                # Among the values, because gradients of weights that come later need it too.
                begun = self._gradient_at(task.micro_batch, tensor)
                self._values[task.micro_batch][id(place)] = begun
        if stage.weight_gradients is None:
            values = self._weight_gradients(task, stage.backward)
        else:
            results = self._call(stage.backward, task)
            values = dict(zip(map(id, stage.backward.fetches), results, strict=True))
            self._values[task.micro_batch].update(values)
        for tensor, gradient in stage.gradient.inputs:
            parts = self._d_values[task.micro_batch].setdefault(id(tensor), [])
            parts.append(values[id(gradient)])

    def _weight_gradients(self, task: Task, function: CutFunction | None) -> dict[int, tf.Tensor]:
        """Compute gradients of weights, added to those of earlier micro-batches.

        Args:
            task: A backward pass, or the weights' part of it.
            function: The one that computes them.
        """
        gradient = self._stages[task.stage].gradient
        if function is None or gradient is None:
            return {}
        so_far = self._sums_so_far(task.stage, gradient)
        device = self._devices[task.stage]
        results = self._call(function, task, so_far, after=self._additions[device])
        values = dict(zip(map(id, function.fetches), results, strict=True))
        totals = {k: total for k, _, total in gradient.sums}
        larger: list[tuple[int, tf.Tensor]] = []
        for position, of_weight in gradient.weights:
            symbolic = totals.get(position, of_weight)
            value = tf.nest.map_structure(lambda t: values[id(t)], symbolic, expand_composites=True)
            if isinstance(value, tf.IndexedSlices):
                self._slices.append((position, value))
            elif position not in totals and (task.stage, position) in self._sums:
                larger.append((position, value))
            else:
                self._sums[task.stage, position] = value
        self._add(task.stage, larger)
        return values

    def _sums_so_far(self, stage: int, gradient: StageGradient) -> dict[int, tf.Tensor]:
        """Return the sums of earlier micro-batches; before the first, zeros.

        Weights of one shape share their zeros, which are made when the stage's turn comes.
        """
        device, zeros = self._devices[stage], {}
        so_far = {}
        for position, place, _ in gradient.sums:
            total = self._sums.get((stage, position))
            if total is None:
                kind = (place.dtype, tuple(place.shape))
                if kind not in zeros:
                    with tf.device(device), tf.control_dependencies(self._calls[device][-1:]):
                        zeros[kind] = tf.zeros(place.shape, place.dtype)
                total = zeros[kind]
            so_far[id(place)] = total
        return so_far

    def _add(self, stage: int, gradients: Sequence[tuple[int, tf.Tensor]]) -> None:
        """Add gradients of weights to those of earlier micro-batches, on the stage's device."""
        device = self._devices[stage]
        with tf.device(device):
            for position, gradient in gradients:
                self._sums[stage, position] += gradient
        if not tf.executing_eagerly():
            # The next call there waits for all of them. That also keeps TensorFlow from adding
            # the gradients of all micro-batches in one operation, until which all were alive.
            self._additions[device] = [self._sums[stage, k].op for k, _ in gradients]

    def _give_back(self, stage: int) -> None:
        """Give the gradients of a stage, which are complete, to the owners of its weights."""
        device = self._devices[stage]
        for (other, position), total in self._sums.items():
            if other == stage:
                given = self._loans[device].give(position, total, len(self._calls[device]))
                self._sums[stage, position] = given

    def _gradient_at(self, micro_batch: int, tensor: tf.Tensor) -> tf.Tensor:
        """Return the gradient of what a stage has handed on, from all that it went to."""
        parts = list(self._d_values[micro_batch].pop(id(tensor), []))
        assert self._begin is not None
        begun = self._begin(micro_batch, tensor)
        if begun is not None:
            parts.append(tf.cast(begun, tensor.dtype))
        if not parts:
            return tf.zeros_like(self._values[micro_batch][id(tensor)])
        return parts[0] if len(parts) == 1 else tf.add_n(parts)

    def _call(
        self,
        function: CutFunction,
        task: Task,
        given: Mapping[int, tf.Tensor] = MappingProxyType({}),
        after: Sequence[tf.Operation] = (),
    ) -> list[tf.Tensor]:
        device = self._devices[task.stage]
        calls = self._calls[device]
        weights = self._loans[device].take(task.stage, calls)
        values = self._values[task.micro_batch]
        args = []
        for tensor in function.feeds:
            position = self._position.get(id(tensor))
            if id(tensor) in given:
                args.append(given[id(tensor)])
            elif position is None:
                args.append(values[id(tensor)])
            elif position < self._num_weights:
                args.append(weights[position])
            else:
                args.append(self._input(task.micro_batch, position, device))
        with tf.device(device), tf.control_dependencies([*calls[-1:], *after]):
            results = function(args)
        if results and not tf.executing_eagerly():
            free_from_order(results)
            if not calls and not function.jit_compile:
                _tf_private.without_search_for_references(results[0].op)
            calls.append(results[0].op)
        return results

    def _input(self, micro_batch: int, position: int, device: str) -> tf.Tensor:
        """Return an input of a micro-batch; samples do not move before their turn."""
        tensor = self._inputs[micro_batch][position - self._num_weights]
        if position < self._num_static or tensor.shape.rank == 0:
            return tensor
        key = micro_batch, position, device
        if key not in self._delivered:
            self._delivered[key] = deliver(tensor, device, self._calls[device][-2:-1])
        return self._delivered[key]


def _in_order(schedule: Schedule) -> Iterator[Task]:
    """Yield the tasks of all devices, each after those whose results it needs."""
    done: set[Task] = set()
    waiting = [deque(order) for order in schedule.orders]
    while any(waiting):
        before = len(done)
        for order in waiting:
            while order and done.issuperset(dependencies(order[0], num_stages=schedule.num_stages)):
                done.add(order[0])
                yield order.popleft()
        assert len(done) > before, f"no task can run next:\n{schedule}"
