"""Variables: what reading and writing means in replicas and outside of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from .strategies import Wrap, local, make, replica_float, replica_id, same, values

Aggregation = tf.VariableAggregation
Synchronization = tf.VariableSynchronization
NAMES = ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA")
SCATTERS = ("add", "sub", "mul", "div", "min", "max", "update")


def row(value: Any) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.reshape(value, [1]), tf.constant([1]), tf.constant([2]))


def scatter(name: str) -> Callable[..., Any]:
    return lambda v, x: getattr(v, f"scatter_{name}")(row(x))


WRITES: dict[str, Callable[[tf.Variable, Any], Any]] = {
    "read": lambda v, x: None,
    "assign": lambda v, x: v.assign(tf.fill([2], x)),
    "assign plain": lambda v, x: v.assign([7.0, 7.0]),
    "assign_add": lambda v, x: v.assign_add(tf.fill([2], x)),
    "assign_sub": lambda v, x: v.assign_sub(tf.fill([2], x)),
    **{f"scatter_{name}": scatter(name) for name in SCATTERS},
}


def outcome(
    strategy: Any, synchronization: str, aggregation: str, write: str, where: str, call: Wrap
) -> Any:
    """Return what is read after writing, in the same context and then outside."""
    with strategy.scope():
        v = tf.Variable(
            [2.0, 4.0],
            synchronization=Synchronization[synchronization],
            aggregation=Aggregation[aggregation],
        )

    def in_replica() -> tf.Tensor:
        WRITES[write](v, replica_float() * 2.0 + 3.0)
        return v.read_value()

    def outside() -> tf.Tensor:
        with strategy.scope():
            WRITES[write](v, tf.constant(3.0))
            return v.read_value()

    try:
        if where == "outside":
            inside = np.asarray(call(outside)()).tolist()
        else:
            inside = [x.tolist() for x in local(strategy, call(lambda: strategy.run(in_replica))())]
        with strategy.scope():
            return inside, v.read_value().numpy().tolist()
    except (ValueError, TypeError, NotImplementedError, AttributeError, RuntimeError):
        return "refused"


@pytest.mark.sampled(12)
@pytest.mark.parametrize("where", ["replica", "outside"])
@pytest.mark.parametrize("aggregation", NAMES)
@pytest.mark.parametrize("synchronization", ["AUTO", "ON_READ"])
@pytest.mark.parametrize("name", ["evener-2", "cut-2"])
def test_every_write(
    name: str, synchronization: str, aggregation: str, where: str, call: Wrap
) -> None:
    """All writes give what OneDeviceStrategy gives, whatever a variable says of aggregation."""
    evener, reference = make(name), make("one-1")
    unlike = {}
    for write in WRITES:
        case = (synchronization, aggregation, write, where)
        got, expected = outcome(evener, *case, call), outcome(reference, *case, call)
        if got != expected:
            unlike[write] = f"evener {got}, OneDeviceStrategy {expected}"
    assert not unlike


@pytest.mark.parametrize("aggregation", ["SUM", "ONLY_FIRST_REPLICA"])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.float64])
def test_other_types(strategy: Any, call: Wrap, aggregation: str, dtype: tf.DType) -> None:
    with strategy.scope():
        v = tf.Variable(tf.constant(2, dtype), aggregation=Aggregation[aggregation])
    call(lambda: strategy.run(lambda: v.assign_add(tf.cast(replica_id() * 2 + 2, dtype))))()
    assert v.dtype == dtype
    assert v.numpy() == 4


def test_flags_and_texts(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        flag = tf.Variable(False, aggregation=Aggregation.ONLY_FIRST_REPLICA)
        text = tf.Variable("before", aggregation=Aggregation.ONLY_FIRST_REPLICA)

    def fn() -> None:
        flag.assign(tf.constant(True))
        text.assign(tf.constant("after"))

    call(lambda: strategy.run(fn))()
    assert flag.numpy() == True  # noqa: E712
    assert text.numpy() == b"after"


def test_writes_return_the_variable(strategy: Any, call: Wrap) -> None:
    """The result of a write can be used as the new value."""
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=Aggregation.MEAN)
    result = call(lambda: strategy.run(lambda: v.assign_add(replica_float() * 2.0) * 10.0))()
    same(local(strategy, result), [10.0])
    with strategy.scope():
        assert v.assign(5.0).numpy() == 5.0
        assert v.assign_add(1.0).numpy() == 6.0


@pytest.mark.parametrize("synchronization", ["AUTO", "ON_READ"])
def test_what_a_write_returns_is_each_replicas_own(
    strategy: Any, call: Wrap, synchronization: str
) -> None:
    with strategy.scope():
        v = tf.Variable(
            0.0, synchronization=Synchronization[synchronization], aggregation=Aggregation.SUM
        )

    @call
    def outer() -> Any:
        result = strategy.run(lambda: v.assign_add(replica_float() + 1.0))
        return strategy.reduce("SUM", result, axis=None)

    assert outer().numpy() == 1.0


def test_reading_after_writing_in_order(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=Aggregation.MEAN)

    @tf.function
    def outer() -> Any:
        def fn() -> Any:
            before = v.read_value()
            v.assign(tf.constant(7.0))
            after = v + 0.0
            return before, after

        return strategy.run(fn)

    before, after = outer()
    count = strategy.num_replicas_in_sync
    same(local(strategy, before), [1.0] * count)
    same(local(strategy, after), [7.0] * count)


def test_several_writes_in_one_run(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        first = tf.Variable(0.0, aggregation=Aggregation.SUM)
        second = tf.Variable(0.0, aggregation=Aggregation.MEAN)

    def fn() -> None:
        for k in range(3):
            first.assign_add(replica_float() + k)
            second.assign(first * (replica_float() + 1.0))

    call(lambda: strategy.run(fn))()
    assert first.numpy() == 3.0
    assert second.numpy() == 3.0


def test_made_inside_run(strategy: Any) -> None:
    made: list[Any] = []

    def fn() -> tf.Tensor:
        v = tf.Variable(3.0, aggregation=Aggregation.SUM)
        made.append(v)
        v.assign_add(replica_float())
        return v.read_value()

    same(local(strategy, strategy.run(fn)), [3.0])
    assert made[0].numpy() == 3.0


def test_made_inside_a_function(strategy: Any) -> None:
    made: list[tf.Variable] = []

    @tf.function
    def step() -> Any:
        def fn() -> tf.Tensor:
            if len(made) < strategy.num_replicas_in_sync:
                made.append(tf.Variable(1.0, aggregation=Aggregation.MEAN))
            return made[0].assign_add(tf.constant(1.0))

        return strategy.run(fn)

    count = strategy.num_replicas_in_sync
    step()
    assert made[0].numpy() == 2.0
    assert set(local(strategy, step())) == {3.0}
    assert len(made) == count
    assert all(v is made[0] for v in made)


def test_returned_from_run(strategy: Any) -> None:
    v = strategy.run(lambda: tf.Variable(1.0, name="made", aggregation=Aggregation.MEAN))
    assert v.name == "made:0"
    assert v.numpy() == 1.0
    strategy.run(lambda: v.assign(replica_float() + 2.0))
    assert v.numpy() == 2.0


def test_made_in_the_scope_by_a_function(strategy: Any) -> None:
    made: list[tf.Variable] = []

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        if not made:
            made.append(tf.Variable(2.0))
        return made[0] * x

    with strategy.scope():
        assert step(tf.constant(3.0)).numpy() == 6.0
    same(local(strategy, strategy.run(step, (values(strategy, [2.0]),))), [4.0])


def test_trainable_flags(strategy: Any) -> None:
    on_read = Synchronization.ON_READ
    with strategy.scope():
        assert tf.Variable(1.0).trainable is True
        assert tf.Variable(1.0, trainable=False).trainable is False
        assert tf.Variable(1.0, synchronization=on_read).trainable is False
        assert tf.Variable(1.0, synchronization=on_read, trainable=True).trainable is True
        assert tf.Variable(1.0, synchronization=on_read, trainable=False).trainable is False


def test_what_a_variable_says_of_itself(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(
            [[1.0, 2.0]],
            name="named",
            aggregation=Aggregation.MEAN,
            synchronization=Synchronization.ON_WRITE,
        )
    assert v.name == "named:0"
    assert v.shape == [1, 2]
    assert v.dtype == tf.float32
    assert v.aggregation == Aggregation.MEAN
    assert v.synchronization == Synchronization.ON_WRITE
    assert isinstance(v, tf.Variable)
    assert v.get_shape().as_list() == [1, 2]
    assert "1." in repr(v)
    np.testing.assert_array_equal(np.asarray(v), [[1.0, 2.0]])


def test_arithmetic_and_slices(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        v = tf.Variable([1.0, 2.0, 3.0])

    def fn() -> Any:
        return v + v, -v, v[1:], v[0] * 2.0, tf.stack([v[0], v[2]]), 2.0**v, v > 1.5

    for part in strategy.experimental_local_results(call(lambda: strategy.run(fn))()[0]):
        np.testing.assert_array_equal(part, [2.0, 4.0, 6.0])
    outside = call(fn)()
    np.testing.assert_array_equal(outside[2], [2.0, 3.0])


def test_slices_are_assigned(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable([1.0, 2.0, 3.0])
    v[1:].assign([5.0, 6.0])
    np.testing.assert_array_equal(v, [1.0, 5.0, 6.0])


def test_gathers(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        v = tf.Variable([[1.0], [2.0], [3.0]])

    def fn() -> Any:
        return (
            tf.gather(v, replica_id() + 1),
            tf.gather_nd(v, [[0, 0]]),
            tf.nn.embedding_lookup(v, [2]),
        )

    first, second, third = call(lambda: strategy.run(fn))()
    same(local(strategy, first), [[2.0]])
    same(local(strategy, second), [[1.0]])
    same(local(strategy, third), [[[3.0]]])


def test_unknown_shapes(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable([1.0], shape=tf.TensorShape([None]))
    v.assign([1.0, 2.0])
    same(local(strategy, strategy.run(lambda: tf.reduce_sum(v))), [3.0])


def test_initial_values_that_are_functions(strategy: Any) -> None:
    calls = []

    def initial() -> tf.Tensor:
        calls.append(1)
        return tf.random.stateless_uniform([3], [1, 2])

    with strategy.scope():
        v = tf.Variable(initial)
    np.testing.assert_array_equal(v, tf.random.stateless_uniform([3], [1, 2]))
    assert len(calls) == 1


@pytest.mark.parametrize("group", [True, False])
def test_update(strategy: Any, call: Wrap, group: bool) -> None:
    with strategy.scope():
        v = tf.Variable(1.0)

    @call
    def outer() -> Any:
        with strategy.scope():
            return strategy.extended.update(
                v, lambda v, x: v.assign(x), args=(tf.constant(5.0),), group=group
            )

    result = outer()
    assert v.numpy() == 5.0
    if not group:
        assert isinstance(result, tuple | list)
        assert all(float(part) == 5.0 for part in result)


def test_update_with_what_each_replica_has(strategy: Any, call: Wrap) -> None:
    """A distributed argument gives the update that of the variable's device."""
    with strategy.scope():
        v = tf.Variable(1.0)

    @call
    def outer() -> None:
        total = strategy.extended.reduce_to("SUM", strategy.run(lambda: replica_float() + 1.0), v)
        with strategy.scope():
            strategy.extended.update(
                v, lambda v, x, by: v.assign_sub(x * by), (total,), {"by": 2.0}
            )

    outer()
    assert v.numpy() == -1.0


def test_update_in_a_merge(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        v = tf.Variable(1.0)

    def merged(strategy: Any, gradient: Any) -> None:
        total = strategy.extended.reduce_to("SUM", gradient, v)
        strategy.extended.update(v, lambda v, g: v.assign_sub(0.5 * g), (total,))

    def fn() -> None:
        tf.distribute.get_replica_context().merge_call(merged, args=(replica_float() + 1.0,))

    call(lambda: strategy.run(fn))()
    assert v.numpy() == 1.0 - 0.5


def test_colocate_vars_with(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable([1.0] * 1000)
        with strategy.extended.colocate_vars_with(v):
            beside = tf.Variable([0.0] * 1000)
    assert beside.device == v.device
    assert strategy.extended.variable_created_in_scope(v)
    assert not strategy.extended.variable_created_in_scope(tf.Variable(1.0))


def test_modules(strategy: Any, call: Wrap) -> None:
    class Layer(tf.Module):
        def __init__(self) -> None:
            super().__init__(name="layer")
            self.w = tf.Variable([[2.0]], name="w")
            self.steps = tf.Variable(0, trainable=False, aggregation=Aggregation.ONLY_FIRST_REPLICA)

        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            self.steps.assign_add(tf.constant(1))
            return x @ self.w

    with strategy.scope():
        layer = Layer()
    assert len(layer.trainable_variables) == 1
    assert len(layer.variables) == 2
    result = call(lambda x: strategy.run(layer, (x,)))(values(strategy, [[[3.0]]]))
    same(local(strategy, result), [[[6.0]]])
    assert layer.steps.numpy() == 1


def test_gradients_of_variables(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        v = tf.Variable(2.0)
        unused = tf.Variable(2.0)

    def fn() -> Any:
        with tf.GradientTape() as tape:
            y = v * v * (replica_float() + 1.0)
        gradient, missing = tape.gradient(y, [v, unused])
        assert missing is None
        return gradient

    result = call(lambda: strategy.run(fn))()
    same(local(strategy, result), [4.0 * (r + 1) for r in range(strategy.num_replicas_in_sync)])


def test_sparse_gradients_of_variables(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        table = tf.Variable(tf.ones([3, 2]))

    def fn() -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.gather(table, [replica_id(), 2]))
        gradient = tape.gradient(y, table)
        assert isinstance(gradient, tf.IndexedSlices)
        return tf.convert_to_tensor(tf.distribute.get_replica_context().all_reduce("SUM", gradient))

    expected = [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    same(local(strategy, call(lambda: strategy.run(fn))()), [expected])


def test_a_variable_made_outside_of_the_scope(strategy: Any, call: Wrap) -> None:
    v = tf.Variable(3.0)
    same(local(strategy, call(lambda: strategy.run(lambda: v * (replica_float() + 2.0)))()), [6.0])


def test_variables_as_arguments(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        v = tf.Variable(3.0, aggregation=Aggregation.SUM)
    call(lambda: strategy.run(lambda v: v.assign_add(replica_float() + 1.0), (v,)))()
    assert v.numpy() == 4.0


def test_local_results_of_a_variable(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(3.0)
    assert {float(part) for part in strategy.experimental_local_results(v)} == {3.0}


def test_read_var(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(3.0)
        assert strategy.extended.read_var(v).numpy() == 3.0


def test_counters_in_a_loop(strategy: Any) -> None:
    """Variables that every replica keeps for itself are right after many runs in one function."""
    with strategy.scope():
        total = tf.Variable(
            0.0, synchronization=Synchronization.ON_READ, aggregation=Aggregation.SUM
        )
        mean = tf.Variable(
            1.0, synchronization=Synchronization.ON_READ, aggregation=Aggregation.MEAN
        )

    @tf.function
    def steps() -> None:
        for _ in tf.range(4):
            strategy.run(lambda: (total.assign_add(replica_float() + 1.0), mean.assign_add(1.0))[1])

    steps()
    count = strategy.num_replicas_in_sync
    assert total.read_value().numpy() == 4.0 * sum(range(1, count + 1))
    assert mean.read_value().numpy() == 5.0


def test_a_step_counter_outside_of_replicas(strategy: Any) -> None:
    with strategy.scope():
        step = tf.Variable(0, dtype=tf.int64, trainable=False)

    @tf.function
    def train() -> tf.Tensor:
        strategy.run(lambda: tf.constant(1.0))
        step.assign_add(1)
        return step.read_value()

    assert [train().numpy() for _ in range(3)] == [1, 2, 3]
