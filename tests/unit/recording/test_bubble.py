"""The bubble of a recorded pipeline is that of its schedule with the recorded seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import keras
import numpy as np
import pytest

import evener
from evener.plan import Plan
from evener.plan.schedule import Task, timeline
from evener.recording.reading import (
    COMPUTE,
    Activity,
    RunRecord,
    activities,
    read_records,
    usual_steps,
)
from evener.schedule import Schedule, schedule_for

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("logical_cpus")]
UNITS, NUM_STEPS = 512, 30
# Steps are recorded by the clock, so a fast machine needs more epochs for as many of them.
ENOUGH, MOST_EPOCHS = 5, 40


def recorded(folder: Path, num_layers: tuple[int, int], num_parts: int, schedule: str) -> RunRecord:
    names = [
        [f"{stage}{k}" for k in range(count)] for stage, count in zip("ab", num_layers, strict=True)
    ]
    stages = {f"cpu:{number}": layers for number, layers in enumerate(names)}
    plan = Plan.pipeline(stages, num_micro_batches=num_parts, schedule=schedule)
    strategy = evener.Strategy(plan)
    with strategy.scope():
        layers = [keras.layers.Dense(UNITS, "relu", name=name) for stage in names for name in stage]
        model = keras.Sequential([keras.Input((UNITS,)), *layers])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).random((UNITS * NUM_STEPS, UNITS), "float32")
    with evener.record(folder, strategy):
        for _ in range(MOST_EPOCHS):
            model.fit(x, x, batch_size=UNITS, verbose=0)
            if len(usual_steps(*read_records(folder))) >= ENOUGH:
                break
    (record,) = read_records(folder)
    return record


def passes_of_steps(record: RunRecord) -> Iterator[list[Activity]]:
    for step in usual_steps(record):
        rows = activities(record.traces[step["of"]], step).values()
        yield [each for row in rows for each in row if each.kind in COMPUTE]


def recorded_bubble(passes: list[Activity]) -> float:
    length = max(each.end for each in passes) - min(each.begin for each in passes)
    return 1 - sum(each.seconds for each in passes) / (2 * length)


def bubble_of(schedule: Schedule, passes: list[Activity]) -> float:
    seconds = {(each.kind, each.stage, each.micro_batch): each.seconds for each in passes}

    def of_task(task: Task) -> float:
        both = seconds.get(("forward + backward", task.stage, task.micro_batch))
        if both is not None:
            return both if task.kind == "backward" else 0.0
        return seconds[task.kind, task.stage, task.micro_batch]

    return timeline(schedule, of_task).bubble


def test_the_bubble_is_that_of_the_schedule(tmp_path: Path) -> None:
    record = recorded(tmp_path, (6, 6), 4, "1f1b")
    planned = schedule_for(record.plan.replicas[0])
    steps = list(passes_of_steps(record))
    assert len(steps) >= ENOUGH
    bubbles = [(recorded_bubble(passes), bubble_of(planned, passes)) for passes in steps]
    assert median(expected for _, expected in bubbles) > 0.1
    # Of equal stages, it is (2 - 1) / (4 + 2 - 1). Other programs disturb single steps, not all.
    # Equal stages in turns would be 0.2 off in each.
    assert min(abs(found - expected) for found, expected in bubbles) < 0.1
