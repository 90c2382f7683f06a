from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from evener._tf_private.random_numbers import (
    drawing_by,
    global_seed,
    global_seed_for_now,
    next_seeds,
    operation_seeds,
    set_operation_seeds,
)


def test_seeds_of_eager_operations_are_put_back() -> None:
    tf.random.set_seed(1)
    state = operation_seeds()
    first = tf.random.normal([3]).numpy().tolist()
    set_operation_seeds(state)
    # Each operation draws a seed: the same one again.
    assert operation_seeds() == state
    assert len(first) == 3


DRAWS: tuple[Callable[[], tf.Tensor], ...] = (
    lambda: tf.random.normal([301, 3]),
    lambda: tf.random.uniform([7], dtype=tf.float64),
    lambda: tf.random.uniform([50], -3, 9, dtype=tf.int64),
    lambda: tf.random.truncated_normal([1000], dtype=tf.float16),
)


@pytest.mark.parametrize("seed", [3, -(2**40), None])
def test_draws_in_a_graph_have_the_numbers_of_eager_ones(seed: int | None) -> None:
    @tf.function(autograph=False)
    def drawn(*seeds: tf.Tensor) -> list[tf.Tensor]:
        with drawing_by(seeds) as num_draws:
            results = [draw() for draw in DRAWS]
            assert num_draws() == len(DRAWS)
        return results

    tf.random.set_seed(seed)
    with global_seed_for_now():
        state = operation_seeds()
        expected = [draw().numpy().tolist() for draw in DRAWS]
        after = operation_seeds()
        set_operation_seeds(state)
        found = drawn(*next_seeds(len(DRAWS)))
        assert [result.numpy().tolist() for result in found] == expected
        assert operation_seeds() == after
    assert global_seed() == seed


def test_draws_with_a_seed_of_their_own_and_in_inner_graphs_stay() -> None:
    @tf.function(autograph=False)
    def drawn(*seeds: tf.Tensor) -> list[tf.Tensor]:
        with drawing_by(seeds) as num_draws:
            results = [tf.random.normal([2], seed=1), tf.random.shuffle([1, 2])]
            results.append(tf.cond(results[0][0] > 0, lambda: DRAWS[0](), lambda: DRAWS[0]()))
            assert num_draws() == 1  # that of the shuffle, which stays stateful
        return results

    definition = drawn.get_concrete_function().graph.as_graph_def()
    kinds = {node.op for node in definition.node}
    kinds |= {node.op for function in definition.library.function for node in function.node_def}
    assert {"RandomStandardNormal", "RandomShuffle"} <= kinds
    assert "StatelessRandomNormalV2" not in kinds


@pytest.mark.long
def test_determinism_is_seen(run_python: Callable[..., Any]) -> None:
    code = """
        import tensorflow as tf
        from evener._tf_private.random_numbers import is_deterministic
        before = is_deterministic()
        tf.config.experimental.enable_op_determinism()
        print(before, is_deterministic())
    """
    assert run_python(code).stdout.split() == ["False", "True"]
