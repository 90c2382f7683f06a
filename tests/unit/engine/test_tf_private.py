"""For each private thing that evener uses: a test that would tell if it changed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from evener import Strategy, _tf_private


@pytest.fixture
def strategy() -> Strategy:
    return Strategy(devices=["cpu:0", "cpu:1"], shares="even")


def compiled_model() -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def test_lockstep_calls_each_replica_on_its_device(strategy: Strategy) -> None:
    devices = []

    def replica() -> tf.Tensor:
        value = tf.ones([])
        total = tf.distribute.get_replica_context().all_reduce("SUM", value)
        devices.append(value.device)
        return total

    @tf.function(autograph=False)
    def run() -> tuple[tf.Tensor, ...]:
        return _tf_private.local_values(_tf_private.run_in_lockstep(strategy, replica))

    assert [float(total) for total in run()] == [2.0, 2.0]
    assert [device[-5:] for device in devices] == ["CPU:0", "CPU:1"]


def test_regrouped_values_come_back_in_order() -> None:
    grouped = _tf_private.regroup([tf.constant(1), tf.constant(2)])
    assert [int(v) for v in _tf_private.local_values(grouped)] == [1, 2]


def test_explicit_device_is_seen() -> None:
    assert _tf_private.explicit_device() == ""
    with tf.device("/CPU:1"):
        assert _tf_private.explicit_device().endswith("CPU:1")


def test_the_keras_variable_behind_an_initial_value_is_found() -> None:
    seen = []

    def creator(next_creator, **kwargs):
        seen.append(_tf_private.keras_variable_being_made(kwargs["initial_value"]))
        return next_creator(**kwargs)

    with tf.variable_creator_scope(creator):
        layer = layers.Dense(2, name="here")
        layer.build((None, 3))
    assert [variable.path for variable in seen] == ["here/kernel", "here/bias"]
    assert tuple(seen[0].shape) == (3, 2)
    assert _tf_private.keras_variable_being_made(tf.zeros([2])) is None


def test_masks_travel_with_tensors() -> None:
    embedded = layers.Embedding(5, 2, mask_zero=True)(tf.constant([[1, 0]]))
    mask = _tf_private.keras_mask(embedded)
    assert mask.numpy().tolist() == [[True, False]]
    other = tf.zeros([1, 2, 2])
    assert _tf_private.keras_mask(other) is None
    _tf_private.set_keras_mask(other, mask)
    assert keras.losses.MeanSquaredError()(tf.ones([1, 2, 2]), other).numpy() == 1.0


def test_losses_are_replaced_inside_only() -> None:
    model = compiled_model()
    x, y = tf.ones([4, 3]), tf.ones([4, 2])
    model.evaluate(x, y, verbose=0)
    before = _tf_private.flat_losses(model)
    assert [one.loss.name for one in before] == ["mse"]
    with _tf_private.losses_replaced(model, lambda index, loss: lambda *args: tf.constant(7.0)):
        assert float(_tf_private.compiled_loss(model)(y, model(x))) == 7.0
    assert _tf_private.flat_losses(model) == before


def test_compiled_parts_of_a_model_are_found() -> None:
    model = compiled_model()
    assert _tf_private.loss_tracker(model).name == "loss"
    assert _tf_private.compiled_metrics(model).name == "compile_metrics"
    assert {layer.name for layer in _tf_private.all_layers(model)} >= {model.name, "dense"}


def test_a_model_is_built_from_shapes(strategy: Strategy) -> None:
    with strategy.scope():
        model = keras.Sequential([layers.Dense(2)])
        model.compile("adam", "mse", metrics=["mae"])
        spec = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2]))
        _tf_private.build_from_spec(model, spec)
    assert model.built
    assert model.optimizer.built
    assert _tf_private.model_strategy(model) is strategy


def test_step_loop_keeps_the_compiler_out_of_the_whole_step() -> None:
    model = compiled_model()
    model.jit_compile = True
    loop = _tf_private.step_loop(model, lambda batch: {"first": batch[0]})
    data = iter(tf.data.Dataset.from_tensors((tf.ones([2, 3]), tf.ones([2, 2]))))
    assert loop(data)["first"].shape == (2, 3)
    assert model.jit_compile is True


def test_losses_are_overridden_inside_only() -> None:
    model = compiled_model()
    with _tf_private.losses_overridden(model, [tf.constant(3.0)]):
        assert [float(loss) for loss in model.losses] == [3.0]
    assert model.losses == []


def test_the_open_stateless_scope_is_found() -> None:
    assert _tf_private.current_stateless_scope() is None
    with keras.StatelessScope() as scope:
        assert _tf_private.current_stateless_scope() is scope


def test_training_is_passed_only_where_it_is_accepted() -> None:
    class Plain(keras.Model):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return x

    assert _tf_private.call_model(Plain(), tf.ones([1]), training=True).shape == (1,)
    dropout = keras.Sequential([layers.Dropout(0.99)])
    assert _tf_private.call_model(dropout, tf.ones([1]), training=False).numpy() == [1.0]


def test_clocks_are_taken_out_of_the_order_of_the_program() -> None:
    def clocks(free: bool) -> list[tf.Operation]:
        @tf.function(autograph=False)
        def read() -> tuple[tf.Tensor, tf.Tensor]:
            first, second = tf.timestamp(), tf.timestamp()
            if free:
                _tf_private.without_program_order(first.op)
                _tf_private.without_program_order(second.op)
            return first, second

        graph = read.get_concrete_function().graph
        return [op for op in graph.get_operations() if op.type == "Timestamp"]

    assert clocks(free=False)[1].control_inputs
    assert not clocks(free=True)[1].control_inputs


def test_the_spec_of_keras_own_iterator_is_found(strategy: Strategy) -> None:
    with strategy.scope():
        model = compiled_model()
    # Fails with an AttributeError inside fit if Keras renames the dataset.
    model.fit(tf.ones([4, 3]), tf.ones([4, 2]), batch_size=2, verbose=0)
    assert not model.train_function.steps.needs_spec(training=True)


def test_layers_below_a_layer() -> None:
    inner = keras.Sequential([layers.Dense(1, name="deep")], name="inner")
    outer = keras.Sequential([keras.Input((3,)), inner])
    assert inner in _tf_private.sublayers(outer)
    assert "deep" in [layer.name for layer in _tf_private.sublayers(inner)]


def test_an_operation_can_be_made_to_wait() -> None:
    with tf.Graph().as_default():
        first, second = tf.constant(1.0) + 1.0, tf.constant(2.0) + 1.0
        _tf_private.run_after(first.op, [second.op])
        assert second.op in first.op.control_inputs


def test_new_variables_are_made_inside_the_context(monkeypatch) -> None:
    made = []

    def creator(next_creator, **kwargs):
        made.append(kwargs["name"])
        return next_creator(**kwargs)

    monkeypatch.setattr(keras.Variable, "_initialize", keras.Variable._initialize)
    _tf_private.around_new_variables(lambda: tf.variable_creator_scope(creator))
    keras.utils.clear_session(free_memory=False)
    layer = layers.Dense(2, name="here")
    layer.build((None, 3))
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(layer.trainable_variables)
    assert made[:2] == ["kernel", "bias"]
    assert any("momentum" in name for name in made)


def test_replicas_are_called_in_their_scope_with_their_numbers(strategy: Strategy) -> None:
    def replica(x: int) -> tuple[int, int]:
        return _tf_private.replica_number(tf.distribute.get_replica_context()), x

    with strategy.scope():
        found = tf.function(
            lambda: _tf_private.call_for_each_replica(strategy, replica, (7,), {}),
            autograph=False,
        )
        numbers = []
        tf.function(lambda: numbers.append(found.python_function()))()
    ((number, x),) = numbers
    assert _tf_private.local_values(number) == (0, 1)
    assert x == 7


def test_a_cloned_function_keeps_its_signature_but_not_the_compiler() -> None:
    spec = tf.TensorSpec([None], tf.float32)
    function = tf.function(tf.reduce_sum, input_signature=[spec], jit_compile=True)
    assert _tf_private.is_traced_function(function)
    assert not _tf_private.is_traced_function(tf.reduce_sum)
    clone = _tf_private.clone_function(function, lambda x: tf.reduce_mean(x))
    assert float(clone([2.0, 4.0])) == 3.0
    assert clone.input_signature == (spec,)
    assert not clone._jit_compile


def test_a_function_is_converted_where_the_code_around_it_is() -> None:
    def positive(x: tf.Tensor) -> tf.Tensor:
        if x > 0:
            return x
        return -x

    @tf.function
    def around(x: tf.Tensor) -> tf.Tensor:
        return _tf_private.autographed(positive)(x)

    assert float(around(tf.constant(-2.0))) == 2.0


def test_values_of_any_size_are_traced_once(strategy: Strategy) -> None:
    traces = []

    @tf.function
    def traced(value: object) -> None:
        traces.append(value)

    def loosen(spec: tf.TensorSpec) -> tf.TensorSpec:
        return tf.TensorSpec([None], spec.dtype)

    for size in (3, 2, 1):
        traced(_tf_private.regroup_or_one([tf.ones([size]), tf.ones([4 - size])], loosen))
    assert len(traces) == 1
    assert _tf_private.is_per_replica(traces[0])
    plain = _tf_private.regroup_or_one([tf.ones([1]), tf.ones([2])])
    assert type(plain) is not type(traces[0]) or plain._type_spec._value_specs[0].shape == [1]


def test_a_plain_variable_has_no_owner(strategy: Strategy) -> None:
    with strategy.scope():
        variable = _tf_private.plain_variable([1.0], tf.float32)
    assert not strategy.ledger.holds(variable)
    assert not variable.trainable


def test_the_stack_ends_in_this_file() -> None:
    assert any(file == __file__ for file, _ in _tf_private.stack())


def test_eager_operations_are_seen_and_then_no_more() -> None:
    seen = []
    with _tf_private.watching_operations(lambda by, given, made: seen.append(by)):
        tf.reduce_mean(tf.constant([1.0, 2.0]))
    tf.reduce_sum(tf.constant([1.0, 2.0]))
    assert "Mean" in seen and "Sum" not in seen


def test_losses_outside_of_replicas_are_those_of_one_device(strategy: Strategy) -> None:
    y, y_pred = tf.zeros([4, 1]), tf.fill([4, 1], 2.0)
    with strategy.scope():
        assert float(keras.losses.MeanSquaredError()(y, y_pred)) == 4.0
        assert float(tf.nn.compute_average_loss([1.0, 3.0])) == 2.0


def test_an_optimizer_knows_the_strategy_it_was_made_under(strategy: Strategy) -> None:
    with strategy.scope():
        optimizer = keras.optimizers.SGD()
    assert _tf_private.optimizer_strategy(optimizer) is strategy
    assert _tf_private.optimizer_strategy(keras.optimizers.SGD()) is not strategy


def wrapped_by(replace: Callable[..., None], note: Callable[[Any, Any], None]) -> list[Any]:
    """Replace functions by ones that take note; return the originals, to be put back."""
    originals = []

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        originals.append(original)

        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            note(args[0], result)
            return result

        return noted

    replace(wrap)
    return originals


def test_every_way_to_the_host_is_one_function() -> None:
    seen: list[Any] = []
    tensor = tf.constant(2.0)
    originals = wrapped_by(_tf_private.replace_host_reads, lambda one, value: seen.append(value))
    try:
        for way in (float, int, bool, str, repr, lambda one: one.numpy(), "{:.1f}".format):
            seen.clear()
            way(tensor)
            assert seen == [2.0], way
    finally:
        back = iter(originals)
        _tf_private.replace_host_reads(lambda _: next(back))
    float(tensor)
    assert len(seen) == 1


def test_iterators_give_batches_through_known_functions() -> None:
    drawn: list[str] = []
    data = tf.data.Dataset.range(8).batch(2)
    plain = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    originals = wrapped_by(
        _tf_private.replace_next_batches, lambda one, _: drawn.append(type(one).__name__)
    )
    try:
        next(iter(data))
        assert drawn == ["OwnedIterator"]
        tf.function(lambda it: it.get_next())(iter(data))
        assert drawn[1:] == ["OwnedIterator"]
        drawn.clear()
        next(iter(plain.experimental_distribute_dataset(data)))
        assert drawn[-1] == "DistributedIterator"
    finally:
        back = iter(originals)
        _tf_private.replace_next_batches(lambda _: next(back))


def test_traced_functions_are_made_and_called_through_known_functions() -> None:
    seen: list[str] = []

    def replace(kind: str) -> Callable[..., Any]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            originals.append(original)

            @functools.wraps(original)
            def noted(*args: Any, **kwargs: Any) -> Any:
                seen.append(kind)
                return original(*args, **kwargs)

            _tf_private.leave_to_autograph(noted)
            return noted

        return wrap

    originals: list[Any] = []
    _tf_private.replace_traced_function(replace("made"), replace("called"))
    try:
        inner = tf.function(lambda x: x + 1)
        assert seen == ["made"]
        outer = tf.function(lambda x: inner(x) if x > 0 else x)
        assert int(outer(tf.constant(1))) == 2
        assert seen == ["made", "made", "called", "called"]
    finally:
        made, called = originals
        _tf_private.replace_traced_function(lambda _: made, lambda _: called)


def test_autograph_converts_what_a_function_left_to_it_calls() -> None:
    def choose(x: tf.Tensor) -> tf.Tensor:
        if x > 0:
            return x
        return -x

    def watched(fn: Callable[..., Any], x: tf.Tensor) -> Any:
        # Rewritten, it would be a copy without these lines.
        lines.append(sys._getframe().f_code.co_filename)
        return tf.__internal__.autograph.tf_convert(
            fn, tf.__internal__.autograph.control_status_ctx(), convert_by_default=False
        )(x)

    lines: list[str] = []
    _tf_private.leave_to_autograph(watched)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return watched(choose, x)

    assert int(step(tf.constant(-3))) == 3
    assert lines == [__file__]
