"""Steps in which all micro-batches of all replicas meet at layers, as at a `BatchNormalization`.

A barrier is an activity that needs all passes before it, and all passes behind it need it::

    replica 0   [ F0 a ][ F1 a ]          [ F0 b, B0 b ][ F1 b, B1 b ]      [ B0 a ][ B1 a ]
                                 barrier                               barrier
    replica 1   [ F0 a ].........          [ F0 b, B0 b ].............      [ B0 a ]

Between two barriers each replica has the order of its schedule, and so a pipeline fills and
empties there. A pass is divided into those of its layers that are in the same phase; see
`evener.planner.step_time`, which predicts the same in closed form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from evener.plan.schedule import Task
from evener.planner.assignment import Assignment, ReplicaAssignment
from evener.planner.step_time import Phase, barrier_seconds, phases_of
from evener.profile import CostProfile
from simulation.activities import Activity, StepGraph
from simulation.passes import PassBuilder, in_order, schedule_of


def add_passes_with_barriers(
    graph: StepGraph, assignment: Assignment, profile: CostProfile, builders: Sequence[PassBuilder]
) -> None:
    """Add all passes of a step, and the barriers between them."""
    model = profile.model
    seconds = barrier_seconds(assignment, model, profile.cluster)
    barrier: int | None = None
    for phase in phases_of(model.layers):
        parts = [
            _PhaseBuilder(builder, replica, phase, barrier)
            for builder, replica in zip(builders, assignment.replicas, strict=True)
        ]
        needs = [number for part in parts for number in part.add()]
        if phase.layer is None:
            break
        layer = model.layers[phase.layer]
        barrier = graph.add(
            Activity(
                kind="barrier",
                what=f"barrier at {layer.name}",
                needs=tuple(needs if barrier is None else [*needs, barrier]),
                uses=(),
                device=-1,
                latency_seconds=phase.num_barriers * seconds[phase.layer],
            )
        )
        for builder in builders:
            if not phase.backward:
                builder.hold_until_barrier(phase.layer, layer.barrier_bytes, barrier)
            else:
                builder.delay_gradients(phase.layer, barrier)
    for builder in builders:
        builder.end()


class _PhaseBuilder:
    """Builder of the passes of one replica between two barriers."""

    def __init__(
        self, builder: PassBuilder, replica: ReplicaAssignment, phase: Phase, barrier: int | None
    ) -> None:
        self._builder = builder
        self._replica = replica
        self._phase = phase
        self._barrier = barrier
        self._numbers: dict[Task, int] = {}

    def add(self) -> list[int]:
        # What zero-bubble schedules put off does not wait for barriers, which is left out.
        in_turn = dataclasses.replace(self._replica, schedule="1f1b")
        for task in in_order(schedule_of(in_turn)):
            layers = self._layers(task)
            if layers:
                self._numbers[task] = self._builder.add_part(task, layers, [*self._needs(task)])
        return list(self._numbers.values())

    def _layers(self, task: Task) -> Sequence[int]:
        """Return the layers of a pass that are in this phase, from the first to the last."""
        part = self._phase.forward if task.kind == "forward" else self._phase.backward
        return [place for place in self._replica.spans[task.stage].layers if place in part]

    def _needs(self, task: Task) -> Iterator[int]:
        if self._barrier is not None:
            yield self._barrier
        span, is_forward = self._replica.spans[task.stage], task.kind == "forward"
        if not is_forward:
            before = self._numbers.get(task._replace(kind="forward"))
            if before is not None:
                yield before
        # What comes from the neighbouring stage may have been ready before the barrier.
        neighbour = task._replace(stage=task.stage + (-1 if is_forward else 1))
        edge = span.first if is_forward else span.end - 1
        number = self._numbers.get(neighbour, self._barrier)
        is_there = 0 <= neighbour.stage < len(self._replica.spans)
        if is_there and edge in self._layers(task) and number is not None:
            yield self._builder.send(neighbour, number)
