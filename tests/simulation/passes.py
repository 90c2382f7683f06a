"""The forward and backward passes of a replica, in the order of its schedule.

A pass of a stage is one activity for each layer: so transfers run beside them as they do in a step,
and what one layer needs is not added to what another needs at another moment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from evener.plan.parts import Replica, Stage
from evener.plan.schedule import Schedule, Task, dependencies, schedule_for
from evener.planner.assignment import Assignment, ReplicaAssignment
from evener.planner.memory import entering_bytes
from evener.planner.step_time import passes_are_separate, step_has_barriers
from evener.profile import CostProfile
from simulation.activities import Activity, Server, StepGraph, Use
from simulation.routes import route
from simulation.weights import LayerProgress


def schedule_of(replica: ReplicaAssignment) -> Schedule:
    """Return the schedule of a replica; its devices are named by their places."""
    return schedule_for(
        Replica(
            share=1,
            stages=tuple(
                Stage(device=f"gpu:{span.device}", layers=(f"{number}",))
                for number, span in enumerate(replica.spans)
            ),
            num_micro_batches=replica.num_micro_batches,
            in_flight=replica.in_flight,
            schedule=replica.schedule,
        )
    )


def in_order(schedule: Schedule) -> Iterator[Task]:
    """Yield the tasks of a schedule, each after those that it needs.

    >>> from evener.planner.prediction import ReplicaAssignment, Span
    >>> replica = ReplicaAssignment(samples=4, spans=(Span(0, 0, 1), Span(1, 1, 2)),
    ...                             num_micro_batches=2, in_flight=2)
    >>> print(*in_order(schedule_of(replica)))
    F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0
    """
    done: set[Task] = set()
    positions = [0] * len(schedule.orders)
    num_tasks = sum(map(len, schedule.orders))
    while len(done) < num_tasks:
        before = len(done)
        for device, order in enumerate(schedule.orders):
            while positions[device] < len(order):
                task = order[positions[device]]
                if not done.issuperset(dependencies(task, num_stages=schedule.num_stages)):
                    break
                done.add(task)
                positions[device] += 1
                yield task
        assert len(done) > before, "the orders of the devices wait for each other"


class PassBuilder:
    def __init__(
        self,
        graph: StepGraph,
        assignment: Assignment,
        number: int,
        profile: CostProfile,
        progress: LayerProgress,
    ) -> None:
        self._graph = graph
        self._replica = assignment.replicas[number]
        self._recompute = assignment.recompute
        self._profile = profile
        self._progress = progress
        self._label = f"replica {number}, " if len(assignment.replicas) > 1 else ""
        has_barriers = step_has_barriers(assignment, profile.model)
        self._last_barrier = profile.model.last_barrier if has_barriers else -1
        self._last_on: dict[int, int] = {}
        self._results: dict[Task, int] = {}
        self._forwards: dict[tuple[int, int, int], int] = {}
        self._entered: dict[tuple[int, int], int] = {}
        self._num_gradients: dict[int, int] = {}

    def add_all(self) -> None:
        replica = self._replica
        if len(replica.spans) == 1 and not any(self._recompute):
            # Both passes of a micro-batch are one call, so that one alone is in flight.
            replica = dataclasses.replace(replica, in_flight=1)
        for task in in_order(schedule_of(replica)):
            self._add(task)
        self.end()

    def end(self) -> None:
        """Note the last passes, when all are added."""
        for device, number in self._last_on.items():
            self._progress.last_pass.setdefault(device, []).append(number)

    def add_part(self, task: Task, layers: Sequence[int], needs: list[int]) -> int:
        """Add the part of a pass that is between two barriers, and return its last activity."""
        is_forward = task.kind == "forward"
        if not is_forward:
            self._num_gradients[task.stage] = task.micro_batch + 1
        edge = 0 if is_forward else self._replica.num_micro_batches - 1
        groups: list[Sequence[int]] = [layers]
        if task.micro_batch == edge:
            groups = [(layer,) for layer in (layers if is_forward else reversed(layers))]
        number = -1
        for group in groups:
            number = self._compute(task, group, needs)
            needs = []
            if is_forward:
                self._keep(task, group, number)
            else:
                self._release(task, group, number)
        if not is_forward and self._replica.spans[task.stage].first in layers:
            self._release_input(task, number)
        return number

    def hold_until_barrier(self, layer: int, num_bytes: float, barrier: int) -> None:
        """Say what waits at a layer, of each sample, from its forward passes to a barrier."""
        for (stage, _, place), number in self._forwards.items():
            if place == layer:
                device = self._replica.spans[stage].device
                size = num_bytes * self._replica.micro_batch
                self._graph.hold(device, size, begin=number, end=barrier)

    def delay_gradients(self, layer: int, barrier: int) -> None:
        """Say that the gradients of a layer are there after a barrier in its backward pass."""
        for span in self._replica.spans:
            if layer in span.layers:
                self._progress.last_gradient[span.device, layer].append(barrier)

    def _add(self, task: Task) -> None:
        makes_gradients = task.kind == "backward"
        if makes_gradients:
            self._num_gradients[task.stage] = self._num_gradients.get(task.stage, 0) + 1
        needed = dependencies(task, num_stages=len(self._replica.spans))
        needs = [self._results[other] for other in needed if other in self._results]
        number = -1
        for layers in self._groups(task):
            number = self._compute(task, layers, needs)
            needs = []
            if task.kind == "forward":
                self._keep(task, layers, number)
            if makes_gradients:
                self._release(task, layers, number)
        if makes_gradients:
            self._release_input(task, number)
        self._results[task] = self.send(task, number)

    def _release_input(self, task: Task, number: int) -> None:
        """Free what a stage was given, after its last backward pass of it."""
        span = self._replica.spans[task.stage]
        samples = self._profile.model.input_bytes if span.first == 0 else self._entering(task)
        begin = self._entered[task.stage, task.micro_batch]
        self._graph.hold(span.device, samples * self._replica.micro_batch, begin=begin, end=number)

    def _groups(self, task: Task) -> list[Sequence[int]]:
        """Return the layers of each activity of a pass, in order."""
        layers = self._replica.spans[task.stage].layers
        if not layers:
            return [layers]
        return [(layer,) for layer in (layers if task.kind == "forward" else reversed(layers))]

    def _compute(self, task: Task, layers: Sequence[int], needs: list[int]) -> int:
        device = self._replica.spans[task.stage].device
        seconds = sum(self._seconds(task, layer, device) for layer in layers)
        if task.kind == "forward":
            arrived = (self._progress.arrived.get((device, layer)) for layer in layers)
            needs = [*needs, *(number for number in arrived if number is not None)]
        if device in self._last_on:
            needs = [*needs, self._last_on[device]]
        model = self._profile.model
        name = model.layers[layers[0]].name if len(layers) == 1 else f"stage {task.stage}"
        number = self._graph.add(
            Activity(
                kind=task.kind,
                what=f"{self._label}{task.kind} {task.micro_batch} of {name}",
                needs=tuple(needs),
                uses=(Use(Server("compute", device), seconds),),
                device=device,
            )
        )
        self._last_on[device] = number
        workspace = max((self._workspace(layer) for layer in layers), default=0.0)
        self._graph.hold(device, workspace, begin=number, end=number)
        return number

    def _seconds(self, task: Task, layer: int, device: int) -> float:
        cluster = self._profile.cluster
        times = self._profile.times[cluster.devices[device].type][layer]
        samples = self._replica.micro_batch
        once = times.forward(samples)
        if task.kind == "forward":
            return once
        end = self._replica.spans[task.stage].end
        separate = passes_are_separate(end, self._recompute) or layer <= self._last_barrier
        added = self._replica.accumulations * times.accumulate_seconds
        backward = times.backward_seconds(
            samples, recompute=self._recompute[layer], separate=separate
        )
        return backward + added

    def _workspace(self, layer: int) -> float:
        costs = self._profile.model.layers[layer]
        recomputed_bytes = costs.activation_bytes if self._recompute[layer] else 0.0
        size = self._replica.micro_batch
        return costs.workspace(size) + recomputed_bytes * size

    def _entering(self, task: Task) -> float:
        return entering_bytes(self._profile.model, self._replica.spans[task.stage].first)

    def _keep(self, task: Task, layers: Sequence[int], number: int) -> None:
        self._entered.setdefault((task.stage, task.micro_batch), number)
        for layer in layers:
            self._forwards[task.stage, task.micro_batch, layer] = number

    def _release(self, task: Task, layers: Sequence[int], number: int) -> None:
        """Free the activations of layers, and note their gradients."""
        device = self._replica.spans[task.stage].device
        model, progress = self._profile.model, self._progress
        for layer in layers:
            costs = model.layers[layer]
            is_recomputed = self._recompute[layer]
            kept = entering_bytes(model, layer) if is_recomputed else costs.activation_bytes
            begin = self._forwards[task.stage, task.micro_batch, layer]
            self._graph.hold(device, kept * self._replica.micro_batch, begin=begin, end=number)
            progress.first_gradient.setdefault((device, layer), number)
            numbers = progress.last_gradient.setdefault((device, layer), [])
            if self._num_gradients[task.stage] == self._replica.num_micro_batches:
                numbers.append(number)
        if self._num_gradients[task.stage] > 1:
            # The gradient of a layer, before it is added to those of earlier micro-batches.
            largest = max((model.layers[layer].gradient_bytes for layer in layers), default=0)
            self._graph.hold(device, largest, begin=number, end=number)

    def send(self, task: Task, number: int) -> int:
        """Add the transfer of a result to the neighbouring stage, if there is one."""
        target = task.stage + {"forward": 1, "backward": -1}[task.kind]
        spans, cluster = self._replica.spans, self._profile.cluster
        if target == task.stage or not 0 <= target < len(spans):
            return number
        source, sink = spans[task.stage].device, spans[target].device
        cut = self._profile.model.layers[spans[min(task.stage, target)].end - 1]
        num_bytes = cut.boundary_bytes * self._replica.micro_batch
        if source == sink or not num_bytes:
            return number
        way = route(cluster, source, sink, num_bytes)
        return self._graph.add(
            Activity(
                kind="send",
                what=f"{self._label}{task.kind} {task.micro_batch} behind {cut.name}",
                needs=(number,),
                uses=way.uses,
                latency_seconds=way.latency_seconds,
                device=sink,
                source=source,
                num_bytes=num_bytes,
            )
        )
