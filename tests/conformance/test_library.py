"""The checks that TensorFlow ships for strategies, run as they are.

`strategy_test_lib` holds what every strategy must pass. Its older half needs
`make_input_fn_iterator`, which strategies of TensorFlow 2 no longer have, MirroredStrategy
included; test_replica_context.py checks the same by `strategy.run`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.distribute import strategy_test_lib as library  # noqa: TID251

from .strategies import make


class Checks(library.DistributionTestBase, library.TwoDeviceDistributionTestBase):
    """The library's checks, outside of its own runner."""

    __test__ = False

    def runTest(self) -> None:
        pass


@pytest.fixture(autouse=True)
def filtered_tracebacks() -> Iterator[None]:
    """Filter tracebacks again: TensorFlow's test classes turn that off for the whole process."""
    yield
    tf.debugging.enable_traceback_filtering()


@pytest.fixture
def checks() -> Checks:
    made = Checks()
    made.setUp()
    return made


def counted(_: Any = None) -> tf.data.Dataset:
    return tf.data.Dataset.range(12).batch(2)


@pytest.mark.parametrize(
    "name",
    [
        "minimize_loss_eager",
        "summary_for_replica_zero_only",
        "replica_id",
        "call_and_merge_exceptions",
        "global_step_update",
        "trainable_variable",
    ],
)
def test_every_strategy(checks: Checks, strategy: Any, name: str) -> None:
    getattr(checks, f"_test_{name}")(strategy)


def test_run_of_one_device() -> None:
    class One(library.OneDeviceDistributionTestBase):
        def runTest(self) -> None:
            pass

    strategy = make("evener-1")
    strategy.unwrap = strategy.experimental_local_results
    One()._test_run(strategy)


def test_datasets_from_a_function(checks: Checks, strategy: Any) -> None:
    def dataset_fn() -> tf.data.Dataset:
        return counted()

    input_fn = checks._input_fn_to_test_input_context(
        dataset_fn,
        expected_num_replicas_in_sync=1,
        expected_num_input_pipelines=1,
        expected_input_pipeline_id=0,
    )
    expected = [[[k, k + 1]] for k in range(0, 12, 2)]
    iterable = strategy.distribute_datasets_from_function(input_fn)
    for _ in range(2):
        got = [
            [part.numpy().tolist() for part in strategy.experimental_local_results(x)]
            for x in iterable
        ]
        assert got == expected
