"""`strategy.run`: what goes in, what comes out, and what may happen in between."""

from __future__ import annotations

import collections
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from .strategies import Wrap, local, make, replica_float, replica_id, same, values

Pair = collections.namedtuple("Pair", ["left", "right"])


def test_each_replica_is_called_once(strategy: Any, call: Wrap) -> None:
    count = strategy.num_replicas_in_sync
    result = call(lambda: strategy.run(replica_id))()
    same(local(strategy, result), list(range(count)))


def test_results_are_arguments_of_the_next_run(strategy: Any, call: Wrap) -> None:
    @call
    def steps() -> Any:
        first = strategy.run(lambda: replica_float() + 1.0)
        second = strategy.run(lambda x: {"a": x * 2, "b": x * x}, args=(first,))
        return strategy.run(lambda b, a: a + 2 * b + 2, kwargs=second)

    expected = [2 * x + 2 * x * x + 2 for x in range(1, strategy.num_replicas_in_sync + 1)]
    same(local(strategy, steps()), expected)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda x: (x, [x + 1, {"k": x + 2}]), id="nested"),
        pytest.param(lambda x: Pair(x, right=x * 2), id="namedtuple"),
        pytest.param(lambda x: collections.OrderedDict(b=x, a=x + 1), id="ordered"),
        pytest.param(lambda x: {"x": x, "none": None}, id="none-inside"),
    ],
)
def test_structures_of_results(strategy: Any, call: Wrap, made: Any) -> None:
    result = call(lambda: strategy.run(lambda: made(replica_float())))()
    flat = tf.nest.flatten(result)
    expected = made(0.0)
    assert type(result) is type(expected)
    tf.nest.assert_same_structure(result, expected)
    for wanted, leaf in zip(tf.nest.flatten(expected), flat, strict=True):
        assert local(strategy, leaf) == [wanted] or (leaf is None and wanted is None)


def test_nothing_is_returned(strategy: Any, call: Wrap) -> None:
    result = call(lambda: strategy.run(lambda: None))()
    assert all(part is None for part in strategy.experimental_local_results(result))


def test_python_values_go_in(strategy: Any, call: Wrap) -> None:
    def fn(x: Any, number: int, *, word: str, switch: bool, nothing: Any) -> Any:
        assert isinstance(number, int) and word == "word" and switch is True and nothing is None
        return x + number

    result = call(
        lambda x: strategy.run(fn, (x, 3), {"word": "word", "switch": True, "nothing": None})
    )(tf.constant(1.0))
    same(local(strategy, result), [4.0])


def test_python_values_come_out(strategy: Any) -> None:
    result = strategy.run(lambda: {"same": 3, "own": int(replica_id()), "text": "t"})
    assert local(strategy, result["own"]) == [0]
    assert set(local(strategy, result["same"])) == {3}
    assert set(local(strategy, result["text"])) == {"t"}


def test_objects_come_out(strategy: Any) -> None:
    thing = object()
    result = strategy.run(lambda: thing)
    assert set(strategy.experimental_local_results(result)) == {thing}


def test_distributed_arguments_are_handed_out(strategy: Any, call: Wrap) -> None:
    count = strategy.num_replicas_in_sync
    x = values(strategy, [[float(r)] * (r + 1) for r in range(count)])
    result = call(lambda x: strategy.run(lambda a, k: a["x"] + k, ({"x": x},), {"k": 1.0}))(x)
    same(local(strategy, result), [np.full(r + 1, r + 1.0) for r in range(count)])


def test_a_traced_function_is_run(strategy: Any, call: Wrap) -> None:
    traces = []

    @tf.function
    def fn(x: tf.Tensor, scale: float = 2.0) -> tf.Tensor:
        traces.append(x.shape)
        return x * scale + replica_float()

    outer = call(lambda x, s: strategy.run(fn, (x,), {"scale": s}))
    count = strategy.num_replicas_in_sync
    for size in (1, 2):
        x = values(strategy, [[float(r + 1)] * size for r in range(count)])
        for _ in range(2):
            result = outer(x, 3.0)
            same(local(strategy, result), [np.full(size, 3.0 * (r + 1) + r) for r in range(count)])
    num_traces = len(traces)
    outer(x, 3.0)
    assert len(traces) == num_traces, "traced again for the same shape"


def test_a_traced_function_with_a_signature(strategy: Any, call: Wrap) -> None:
    x = values(strategy, [[1.0, 2.0]])

    @tf.function(input_signature=[tf.type_spec_from_value(x), tf.TensorSpec([], tf.int32)])
    def fn(x: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
        assert x.shape.rank == 1 and k.shape.rank == 0
        return tf.reduce_sum(x) + tf.cast(k, tf.float32)

    same(local(strategy, call(lambda x: strategy.run(fn, (x, tf.constant(1))))(x)), [4.0])
    same(local(strategy, call(lambda x: strategy.run(fn, (x, tf.constant(2))))(x)), [5.0])


def test_a_traced_method_is_run(strategy: Any, call: Wrap) -> None:
    class Doubler(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = tf.Variable(2.0)

        @tf.function
        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return self.factor * x

    with strategy.scope():
        doubler = Doubler()
    x = values(strategy, [3.0])
    same(local(strategy, call(lambda x: strategy.run(doubler, (x,)))(x)), [6.0])
    same(local(strategy, call(lambda x: strategy.run(doubler.__call__, (x,)))(x)), [6.0])


def test_functions_inside_the_function(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        v = tf.Variable(2.0)

    @tf.function
    def innermost(x: tf.Tensor) -> tf.Tensor:
        return x * v

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return innermost(x) + replica_float()

    result = call(
        lambda: strategy.run(lambda: inner(tf.constant(3.0)) + innermost(replica_float()))
    )()
    same(local(strategy, result), [6.0 + 3 * r for r in range(strategy.num_replicas_in_sync)])


def test_conditions_inside(strategy: Any, call: Wrap) -> None:
    def fn() -> tf.Tensor:
        return tf.cond(replica_id() > 0, lambda: tf.constant(5.0), lambda: replica_float() - 1.0)

    same(local(strategy, call(lambda: strategy.run(fn))()), [-1.0])


def test_loops_inside(strategy: Any, call: Wrap) -> None:
    def fn() -> tf.Tensor:
        _, total = tf.while_loop(
            lambda i, _: i < replica_id() + 2,
            lambda i, total: (i + 1, total + tf.cast(i, tf.float32)),
            (0, 0.0),
        )
        return total

    same(local(strategy, call(lambda: strategy.run(fn))()), [1.0])


def test_python_conditions_and_loops_inside(strategy: Any, call: Wrap) -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for i in tf.range(replica_id() + 1):
            if x[0] > 2.0:
                total += x[0]
            else:
                total -= tf.cast(i, tf.float32) + 1.0
        while total > 10.0:
            total -= 10.0
        return total

    x = values(strategy, [[14.0]])
    same(local(strategy, call(lambda x: strategy.run(fn, (x,)))(x)), [4.0])


def enlarged(x: tf.Tensor) -> tf.Tensor:
    """Return a tensor, or ten times of it: a condition that AutoGraph has to convert."""
    if tf.reduce_sum(x) > 1.0:
        return x * 10.0
    return x


def test_python_conditions_in_a_function_it_calls(strategy: Any) -> None:
    def fn() -> tf.Tensor:
        return enlarged(replica_float() + 2.0)

    same(local(strategy, tf.function(lambda: strategy.run(fn))()), [20.0])


@pytest.mark.xfail(
    reason="AutoGraph leaves out what a lambda inside of a function calls", strict=True
)
@pytest.mark.parametrize("name", ["evener-2", "cut-2"])
def test_python_conditions_in_a_function_that_a_lambda_calls(name: str) -> None:
    strategy = make(name)

    @tf.function
    def outer() -> Any:
        return strategy.run(lambda: enlarged(replica_float() + 2.0))

    same(local(strategy, outer()), [20.0])


def test_autograph_is_left_out_where_it_is_switched_off(strategy: Any) -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        if x > 0:
            return x
        return -x

    @tf.function(autograph=False)
    def outer() -> Any:
        return strategy.run(fn, (tf.constant(1.0),))

    with pytest.raises(Exception, match="Tensor"):
        outer()


def test_run_in_a_loop(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

    @tf.function
    def steps(n: tf.Tensor) -> tf.Tensor:
        total = 0.0
        for i in tf.range(n):
            result = strategy.run(
                lambda k: v.assign_add(k + 1.0) * 0.0 + k, (tf.cast(i, tf.float32),)
            )
            total += strategy.reduce("SUM", result, axis=None)
        return total

    count = strategy.num_replicas_in_sync
    assert steps(tf.constant(4)).numpy() == 6.0 * count
    assert v.numpy() == 10.0 * count


def test_run_in_a_while_loop_and_a_condition(strategy: Any) -> None:
    @tf.function
    def steps() -> tf.Tensor:
        total, i = tf.constant(0), tf.constant(0)
        while i < 3:
            if i % 2 == 0:
                total += strategy.reduce("SUM", strategy.run(lambda: replica_id() + 1), axis=None)
            i += 1
        return total

    assert steps().numpy() == 2


def test_run_in_run_in_one_function(strategy: Any) -> None:
    """A function may hold several runs of several functions."""

    @tf.function
    def steps() -> Any:
        first = strategy.run(lambda: replica_float() + 1.0)
        second = strategy.run(lambda x: x * x, (first,))
        return strategy.reduce("SUM", first, axis=None), strategy.reduce("SUM", second, axis=None)

    same([t.numpy() for t in steps()], [1.0, 1.0])


class Broken(Exception):
    """Error that the function of a person raises."""


@pytest.mark.parametrize("where", ["replica", "merge", "after_merge"])
def test_exceptions_keep_their_kind_and_text(strategy: Any, call: Wrap, where: str) -> None:
    def fn() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        if where == "replica":
            raise Broken(f"no luck in {where}")
        if where == "merge":
            context.merge_call(merged)
        if where == "after_merge":
            context.merge_call(lambda strategy: None)
            raise Broken(f"no luck in {where}")
        return tf.constant(1.0)

    def merged(strategy: Any) -> None:
        raise Broken(f"no luck in {where}")

    with pytest.raises(Broken, match=f"no luck in {where}"):
        call(lambda: strategy.run(fn))()
    same(local(strategy, call(lambda: strategy.run(replica_id))()), [0])
    assert tf.distribute.in_cross_replica_context() is False
    assert not tf.distribute.has_strategy()


def test_errors_of_operations_come_through(strategy: Any, call: Wrap) -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(x, 5.0, message="too large here")
        return x

    with pytest.raises(tf.errors.InvalidArgumentError, match="too large here"):
        call(lambda x: strategy.run(fn, (x,)))(values(strategy, [7.0]))
    result = call(lambda x: strategy.run(fn, (x,)))(values(strategy, [1.0]))
    same(local(strategy, result), [1.0])


def test_an_exception_leaves_variables_usable(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)
        kept = tf.Variable(
            1.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def fn(fail: bool) -> None:
        kept.assign_add(1.0)
        if fail:
            raise Broken("now")
        v.assign_add(tf.constant(1.0))

    with pytest.raises(Broken):
        strategy.run(fn, (True,))
    before = kept.read_value().numpy()
    strategy.run(fn, (False,))
    assert v.numpy() == 2.0
    assert kept.read_value().numpy() == before + 1.0


def test_eagerness_is_kept(strategy: Any) -> None:
    assert set(strategy.experimental_local_results(strategy.run(tf.executing_eagerly))) == {True}
    seen = []

    @tf.function
    def outer() -> None:
        strategy.run(lambda: seen.append(tf.executing_eagerly()))

    outer()
    assert seen == [False]


def test_name_scopes_go_on(strategy: Any) -> None:
    names = []

    def fn() -> tf.Tensor:
        constant = tf.constant(1.0, name="one")
        names.append(constant.op.name)
        tf.distribute.get_replica_context().merge_call(lambda s: None)
        with tf.name_scope("inner"):
            two_ = tf.identity(constant, name="two")
        names.append(two_.op.name)
        return two_

    @tf.function
    def outer() -> Any:
        with tf.name_scope("outer"):
            return strategy.run(fn)

    outer()
    # A step that is partitioned has a graph of its own.
    assert [name.removeprefix("outer/") for name in names] == ["one", "inner/two"]


def test_custom_gradients(strategy: Any, call: Wrap) -> None:
    @tf.custom_gradient
    def halved(x: tf.Tensor) -> Any:
        return x, lambda upstream: upstream * 0.5

    def fn(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = halved(x) * 4.0
        return tape.gradient(y, x)

    result = call(lambda x: strategy.run(fn, (x,)))(values(strategy, [1.0]))
    same(local(strategy, result), [2.0])


def test_run_inside_the_scope_and_outside(strategy: Any, call: Wrap) -> None:
    outside = call(lambda: strategy.run(replica_id))()
    with strategy.scope():
        inside = call(lambda: strategy.run(replica_id))()
    same(local(strategy, inside), local(strategy, outside))


def test_functions_run_eagerly(strategy: Any) -> None:
    @tf.function
    def outer() -> Any:
        assert tf.executing_eagerly()
        return strategy.run(tf.function(lambda: replica_id()))

    tf.config.run_functions_eagerly(True)
    try:
        same(local(strategy, outer()), [0])
    finally:
        tf.config.run_functions_eagerly(False)


def test_py_function_inside(strategy: Any, call: Wrap) -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        y = tf.numpy_function(lambda a: a + np.float32(1), [x], tf.float32)
        y.set_shape([])
        return y

    result = call(lambda x: strategy.run(fn, (x,)))(values(strategy, [1.0]))
    same(local(strategy, result), [2.0])


def test_ragged_and_sparse_values_come_out(strategy: Any, call: Wrap) -> None:
    def fn() -> Any:
        n = replica_id() + 1
        ragged = tf.RaggedTensor.from_row_lengths(tf.range(n * 2), [n, n])
        sparse = tf.sparse.from_dense(tf.stack([0, n]))
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.stack([n]), tf.constant([3, 2]))
        return ragged, sparse, slices

    ragged, sparse, slices = call(lambda: strategy.run(fn))()
    assert local(strategy, ragged) == [[[0], [1]]]
    same(local(strategy, sparse), [[0, 1]])
    same(local(strategy, slices), [[[0, 0], [1, 1], [0, 0]]])


def test_two_strategies_in_one_process(call: Wrap) -> None:
    first, second = make("evener-2"), make("cut-3")
    mirrored = make("mirrored-2")
    with first.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)
    with second.scope():
        w = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)

    @call
    def both() -> Any:
        first.run(lambda: v.assign_add(1.0))
        second.run(lambda: w.assign_add(1.0))
        return first.run(replica_id), second.run(replica_id), mirrored.run(replica_id)

    a, b, c = both()
    same(local(first, a), [0])
    same(local(second, b), [0])
    same(local(mirrored, c), [0, 1])
    assert (v.numpy(), w.numpy()) == (2.0, 2.0)


def test_a_variable_of_another_strategy_is_read(call: Wrap) -> None:
    first, second = make("evener-2"), make("cut-3")
    with first.scope():
        v = tf.Variable(3.0)
    step = call(lambda: second.run(lambda: v * (replica_float() + 1.0)))
    same(local(second, step()), [3.0])


@pytest.mark.parametrize("name", ["evener-2", "cut-2"])
def test_a_strategy_is_forgotten(name: str) -> None:
    def use() -> weakref.ref[tf.distribute.Strategy]:
        strategy = make(name)
        tf.function(lambda: strategy.run(replica_id))()
        return weakref.ref(strategy)

    gone = use()
    gc.collect()
    assert gone() is None
