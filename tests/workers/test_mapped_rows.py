"""Steps whose batches lack the rows that a worker was not expected to need, on workers that die."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from evener._tf_private.datasets import LastMaps
from evener.partition.shard import is_row_wise
from evener.workers.own_rows import OwnRowsPipeline
from exactness.steps.case import BuiltStep, normal
from exactness.steps.runs import Run, check
from workers.in_threads import (
    Fault,
    FaultyGroup,
    Outcome,
    distributed,
    layout_of,
    run_workers,
    same_bits,
)
from workers.test_own_steps import BUILDS

SHARES = (5.0, 3.0, 2.0)
ROWS, BATCH = 29, 8


def build(name: str) -> BuiltStep:
    """Return a step of the other tests, or one of these; the same on all workers."""
    keras.utils.set_random_seed(7)
    return {"whole": distances_in_the_batch, "drawn": drawn_by_a_kernel, **BUILDS}[name]()


def distances_in_the_batch() -> BuiltStep:
    """A step that reads all rows on each device."""
    weight = tf.Variable(tf.ones([6, 4]))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            found = x @ weight
            distances = tf.matmul(found, y, transpose_b=True) - tf.matmul(x, x, transpose_b=True)
            loss = tf.reduce_mean(distances**2)
        weight.assign_sub(0.001 * tape.gradient(loss, weight))
        return loss

    return BuiltStep(step=step, batch=two_arrays, variables=[weight])


def drawn_by_a_kernel() -> BuiltStep:
    """A step whose random numbers are gone when it is broken off behind them."""
    weight = tf.Variable(tf.ones([6, 4]))

    def step(x: Any, y: Any) -> Any:
        noise = tf.random.normal([6], seed=3)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(((x + noise) @ weight - y) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return BuiltStep(step=step, batch=two_arrays, variables=[weight])


def two_arrays(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    return normal(rng, n, 6), normal(rng, n, 4)


class _EagerRows(OwnRowsPipeline):
    """Rows that are mapped in the thread of their worker.

    The workers are threads of one process here, and those that wait for others keep the threads of
    TensorFlow busy. For the same reason their pipelines have threads of their own.
    """

    def map_rows(self, elements: list[Any]) -> list[Any]:
        rows = zip(*(tf.unstack(element) for element in elements), strict=True)
        mapped = [self._pipeline.of_rows.compute([*row]) for row in rows]
        return [tf.stack(tensors) for tensors in zip(*mapped, strict=True)]


def mapped(case: BuiltStep) -> Any:
    x, y = case.batch(np.random.default_rng(3), ROWS)
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    # Batches that are mapped ahead, before a step has said which rows it needs, lack more of them.
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    return rows.with_options(options).map(lambda x, y: (2 * x, y - 1)).batch(BATCH)


def nothing(count: int) -> npt.NDArray[np.bool_]:
    return np.zeros(count, np.bool_)


def one_device(name: str) -> Run:
    case = build(name)
    step = tf.function(case.step)
    returned = [as_arrays(step(x, y)) for x, y in mapped(case)]
    return returned, [np.asarray(variable) for variable in case.variables]


def as_arrays(results: Any) -> list[np.ndarray]:
    return [*map(np.asarray, tf.nest.flatten(results))]


def run(name: str, *faults: Fault) -> tuple[Outcome, list[Any]]:
    """Run a step on three workers, each of which takes its rows for none."""
    made: list[Any] = []

    def work(group: FaultyGroup, case: BuiltStep) -> Run:
        step = distributed(group, case.step, layout_of(group, (1, 1, 1)), SHARES)
        group.compared = case.variables
        rows = _EagerRows(
            LastMaps.of(mapped(case), is_row_wise), maps_first=False, own_rows=nothing
        )
        returned, outline = [], None
        for batch in iter(rows).of_own_rows():
            group.begin_step()
            results: Any = group.call(
                lambda batch=batch: step(*batch.expected()),
                outline=outline,  # pyright: ignore[reportArgumentType]
                batch=batch,
            )
            returned.append(as_arrays(results))
            made.append(batch)
        return returned, [np.asarray(variable) for variable in case.variables]

    found = run_workers(work, [build(name) for _ in SHARES], faults=faults)
    assert not found.faults_left
    assert same_bits(found.runs)
    expected = one_device(name)
    for actual in found.runs.values():
        check(build(name), expected, actual)
    return found, made


@pytest.mark.parametrize(
    "name", ["batch_norm_and_dropout", "drawn", "counter_read_before_the_loss"]
)
def test_rows_that_are_missing_are_mapped_and_the_step_is_begun_again(name: str) -> None:
    """At first all rows are expected; the last batch is smaller, so others are needed of it.

    Those of the first worker are among the rows that it has mapped of larger batches.
    """
    found, made = run(name)
    # The first begins again too if it was ahead of the step that says which rows are needed.
    assert len(SHARES) - 1 <= found.num_retries <= len(SHARES)
    lacking = [batch for batch in made if not np.all(batch._is_mapped)]
    assert len(lacking) == 3 * len(SHARES)


def test_a_step_that_reads_the_whole_batch_has_it() -> None:
    found, made = run("whole")
    assert found.num_retries == 0
    assert all(np.all(batch._is_mapped) for batch in made)


def test_the_rows_of_a_dead_worker_are_mapped_by_the_others() -> None:
    run("batch_norm_and_dropout", Fault(worker=1, step=2, exchange=1))


@pytest.mark.long
def test_faults() -> None:
    name = "batch_norm_and_dropout"
    counts = run(name)[0].num_exchanges
    for exchange in range(counts[3] + 1):
        run(name, Fault(worker=exchange % 3, step=3, exchange=exchange))
    last = Fault(worker=0, step=2, exchange=counts[2] - 1, kind="hears nothing")
    run(name, last)
    run(name, Fault(worker=1, step=1, exchange=0), Fault(worker=2, step=3, exchange=0))
