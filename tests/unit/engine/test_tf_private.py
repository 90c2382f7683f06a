"""For each private thing that evener uses: a test that would tell if it changed."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from evener import Strategy, _tf_private
from evener.pinning import colocation


@pytest.fixture
def strategy() -> Strategy:
    return Strategy(devices=["cpu:0", "cpu:1"], shares="even")


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


def test_layers_below_a_layer() -> None:
    inner = keras.Sequential([layers.Dense(1, name="deep")], name="inner")
    outer = keras.Sequential([keras.Input((3,)), inner])
    assert inner in _tf_private.sublayers(outer)
    assert "deep" in [layer.name for layer in _tf_private.sublayers(inner)]


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


def test_the_call_of_traced_functions_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(tf.function(tf.reduce_sum))
    monkeypatch.setattr(kind, "__call__", kind.__call__)
    seen = []

    def wrapper(original):
        def call(function, *args, **kwargs):
            seen.append(function)
            return original(function, *args, **kwargs)

        return call

    _tf_private.replace_traced_call(wrapper)
    total = tf.function(tf.reduce_sum)
    assert float(total([1.0, 2.0])) == 3.0
    assert seen == [total]


def test_a_function_is_converted_where_the_code_around_it_is() -> None:
    def positive(x: tf.Tensor) -> tf.Tensor:
        if x > 0:
            return x
        return -x

    @tf.function
    def around(x: tf.Tensor) -> tf.Tensor:
        return _tf_private.autographed(positive)(x)

    assert float(around(tf.constant(-2.0))) == 2.0


def test_a_plain_variable_has_no_owner(strategy: Strategy) -> None:
    with strategy.scope():
        variable = _tf_private.plain_variable([1.0], tf.float32)
    assert not strategy.owner_registry.holds(variable)
    assert not variable.trainable


def test_the_stack_ends_in_this_file() -> None:
    assert any(file == __file__ for file, _ in _tf_private.stack())


def stopped(call) -> tuple:
    """The traced function that a call would run, and its inputs."""

    class Stop(Exception):
        pass

    def watch(function, inputs):
        raise Stop(function, inputs)

    with pytest.raises(Stop) as caught, _tf_private.before_functions_run(watch):
        call()
    return caught.value.args


def test_compiled_functions_are_known() -> None:
    assert _tf_private.is_compiled(tf.function(lambda x: x, jit_compile=True))
    assert not _tf_private.is_compiled(tf.function(lambda x: x))
    assert not _tf_private.is_compiled(lambda x: x)


def test_functions_run_inside_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    @contextlib.contextmanager
    def wrap(function):
        seen.append(f"begin {function.name.decode()}")
        yield
        seen.append("end")

    kind = _tf_private.atomic_function.AtomicFunction
    monkeypatch.setattr(kind, "call_flat", kind.call_flat)
    _tf_private.around_functions_run(wrap)
    inner = tf.function(lambda x: x + 1.0)
    outer = tf.function(lambda x: inner(x) * 2.0)
    assert float(outer(tf.constant(1.0))) == 4.0
    begin, end = seen
    assert begin.startswith("begin __inference_") and end == "end"


def test_a_function_is_stopped_placed_and_read_without_running() -> None:
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def inner(x):
        with tf.device("/cpu:1"):
            return tf.sin(x)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = inner(x * variable)
        variable.assign_sub(tape.gradient(y, variable))
        return y + 0.0

    step(tf.ones([2]))
    before = variable.numpy()
    function, inputs = stopped(lambda: step(tf.ones([2])))
    for optimized in (True, False):
        placed = _tf_private.placed_without_running(function, inputs, optimized=optimized)
        nodes = {node.name: node for node in placed.post_optimization_graph.node}
        (sine,) = (node for node in nodes.values() if node.op == "Sin")
        assert sine.device.endswith("CPU:1")
        assert sine.experimental_debug_info.original_node_names == ["Sin"]
        sent = [n for part in placed.partition_graphs for n in part.node if n.op == "_Send"]
        assert sent
    assert variable.numpy().tolist() == before.tolist()
    graphs = _tf_private.function_graphs(function)
    (name,) = sine.experimental_debug_info.original_func_names
    frames = _tf_private.definition_frames(graphs[name].get_operation_by_name("Sin"))
    assert (__file__, inner.python_function.__code__.co_firstlineno + 3, "inner") in frames
    backward = [operation for graph in graphs.values() for operation in graph.get_operations()]
    (cosine,) = (operation for operation in backward if operation.type == "Cos")
    made_by = {frame[2] for frame in _tf_private.definition_frames(cosine)}
    assert made_by & {"imperative_grad", "_GradientsHelper"}


def test_a_function_that_runs_in_spite_of_a_wrong_input_is_told_of(monkeypatch) -> None:
    function, inputs = stopped(lambda: tf.function(lambda x: x + 1.0)(tf.ones([])))
    monkeypatch.setattr(_tf_private.eager_execute, "execute", lambda *rest: [])
    with pytest.raises(RuntimeError, match="no longer checks its inputs"):
        _tf_private.placed_without_running(function, inputs, optimized=True)


def test_handle_data_tells_the_shape_behind_a_placeholder() -> None:
    variable = tf.Variable(tf.ones([2, 3]))
    with tf.Graph().as_default():
        placeholder = tf.compat.v1.placeholder(tf.resource, [])
        _tf_private.copy_handle_data(variable.handle, placeholder)
        read = tf.raw_ops.ReadVariableOp(resource=placeholder, dtype=tf.float32)
    assert read.shape == [2, 3]


def test_kernels_and_definitions_are_told() -> None:
    kinds = {kernel.device_type for kernel in _tf_private.registered_kernels("MatMul")}
    assert "CPU" in kinds
    assert _tf_private.registered_kernels("NoSuchOperation") == []
    assert _tf_private.operation_definition("NoSuchOperation") is None
    definition = _tf_private.operation_definition("MatMul")
    assert [argument.name for argument in definition.input_arg] == ["a", "b"]
    assert "MatMul" in _tf_private.operation_names()


def test_seeds_of_eager_operations_are_put_back() -> None:
    tf.random.set_seed(1)
    state = _tf_private.operation_seeds()
    first = tf.random.normal([3]).numpy().tolist()
    _tf_private.set_operation_seeds(state)
    # Each operation draws a seed: the same one again.
    assert _tf_private.operation_seeds() == state
    assert len(first) == 3


def test_a_model_under_a_strategy_is_built_for_its_step(strategy: Strategy) -> None:
    with strategy.scope():
        model = keras.Sequential([layers.Dense(2)])
        model.compile("adam", "mse")
    _tf_private.build_for_step(model, (tf.ones([4, 3]), tf.ones([4, 2])))
    assert model.built and model.optimizer.built


def test_eager_tensors_are_told_from_those_in_graphs() -> None:
    assert _tf_private.is_eager_tensor(tf.constant(1.0))
    with tf.Graph().as_default():
        assert not _tf_private.is_eager_tensor(tf.constant(1.0))


def test_the_length_of_a_tensor_in_a_graph_is_its_first_size() -> None:
    lengths: list[int] = []

    @tf.function(autograph=False)
    def of(tensor: tf.Tensor) -> tf.Tensor:
        with _tf_private.symbolic_lengths():
            lengths.append(len(tensor))
        return tensor

    of(tf.zeros([3, 2]))
    assert lengths == [3]
    with pytest.raises(TypeError, match="len"):
        of.get_concrete_function(tf.TensorSpec([None], tf.float32))
    with pytest.raises(TypeError, match="len"):
        tf.function(lambda x: x[: len(x)], autograph=False)(tf.zeros([3]))


def test_containers_of_a_module_are_taken_out_of_their_wrappers() -> None:
    module = tf.Module()
    module.rates = {"a": 1.0}
    assert type(module.rates) is not dict
    assert type(_tf_private.unwrapped(module.rates)) is dict
    assert _tf_private.unwrapped(module) is module


def test_it_is_seen_that_a_tape_records() -> None:
    assert not _tf_private.tape_is_recording()
    with tf.GradientTape():
        assert _tf_private.tape_is_recording()
    assert not _tf_private.tape_is_recording()


@pytest.mark.parametrize("jit_compile", [True, None])
def test_a_graph_for_xla_is_known_while_it_is_traced(jit_compile: bool | None) -> None:
    seen = []

    @tf.function(jit_compile=jit_compile)
    def traced() -> tf.Tensor:
        seen.append(_tf_private.in_xla(tf.compat.v1.get_default_graph()))
        return tf.constant(1.0)

    traced.get_concrete_function()
    assert set(seen) == {bool(jit_compile)}


@pytest.mark.parametrize("jit_compile", [True, None])
def test_the_body_of_what_xla_compiles_is_the_function_itself(jit_compile: bool | None) -> None:
    def body() -> tf.Tensor:
        return tf.constant(1.0)

    function = tf.function(body, jit_compile=jit_compile)
    assert _tf_private.body_of(function) is (function if jit_compile else body)
    assert _tf_private.body_of(body) is body


@pytest.mark.long
def test_determinism_is_seen(run_python: Callable[..., Any]) -> None:
    code = """
        import tensorflow as tf
        from evener import _tf_private
        before = _tf_private.is_deterministic()
        tf.config.experimental.enable_op_determinism()
        print(before, _tf_private.is_deterministic())
    """
    assert run_python(code).stdout.split() == ["False", "True"]


def test_the_device_of_now_is_seen_in_graphs_too() -> None:
    assert _tf_private.current_device() == ""
    with tf.device("/CPU:1"):
        assert _tf_private.current_device().endswith("CPU:1")
        with tf.Graph().as_default(), tf.device("/CPU:2"):
            assert _tf_private.current_device().endswith("CPU:2")


def test_an_eager_operation_can_be_sent_the_slower_way() -> None:
    # It puts a wrapper around the fast way, which raises `FallBack`.
    colocation.install()
    with tf.GradientTape() as tape, tf.device("/CPU:1"):
        x = tf.Variable(3.0)
        y = x * x
    gradient = tape.gradient(y, x)
    assert (float(gradient), gradient.device[-5:]) == (6.0, "CPU:1")


def test_variables_that_wait_keep_their_device() -> None:
    import evener

    evener.pin("cpu:1")  # Puts it in place.

    class Late(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Dense(2)

        def call(self, x: tf.Tensor) -> tf.Tensor:
            with tf.device("/CPU:2"):
                return self.inner(x)

    model = Late()
    model(tf.ones([1, 3]))
    assert model.inner.kernel.value.device.endswith("CPU:2")


def test_own_variables_are_those_of_the_layer_alone() -> None:
    model = keras.Sequential([layers.Dense(2), layers.Dropout(0.5)])
    model.build((None, 3))
    assert _tf_private.own_variables(model) == []
    dense, dropout = model.layers
    assert [v.name for v in _tf_private.own_variables(dense)] == ["kernel", "bias"]
    assert len(_tf_private.own_variables(dropout)) == 1


def test_a_variable_is_made_anew_on_another_device() -> None:
    variable = keras.Variable([1.0, 2.0], trainable=False)
    with tf.device("/CPU:1"):
        old = _tf_private.renew_variable(variable)
    assert old.device.endswith("CPU:0")
    assert variable.value.device.endswith("CPU:1")
    assert variable.numpy().tolist() == [1.0, 2.0]
    assert not variable.value.trainable
    assert not _tf_private.waits_for(variable, "/CPU:2")


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
    originals = wrapped_by(
        _tf_private.replace_host_reads, lambda context, value: seen.append(value)
    )
    try:
        for way in (float, int, bool, str, repr, lambda tensor: tensor.numpy(), "{:.1f}".format):
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
        _tf_private.replace_next_batches,
        lambda operation, _: drawn.append(type(operation).__name__),
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


def test_what_a_captured_tensor_stands_for_is_found() -> None:
    variable, outer = tf.Variable([1.0, 2.0]), tf.zeros([300])
    found = []

    @tf.function(autograph=False)
    def read() -> tf.Tensor:
        handle = tf.compat.v1.get_default_graph().capture(variable.handle)
        total = tf.reduce_sum(outer) + tf.reduce_sum(variable)
        captured = tf.compat.v1.get_default_graph().capture(outer)
        found.extend(map(_tf_private.outer_tensor, (handle, captured, total)))
        return total

    read.get_concrete_function()
    assert found[0] is variable.handle
    assert found[1] is outer
    assert found[2] is None
    with tf.Graph().as_default():
        assert _tf_private.outer_tensor(tf.constant(1.0)) is None


def test_it_is_seen_which_variables_are_trained_and_written() -> None:
    weight, count = tf.Variable(1.0), tf.Variable(0.0, trainable=False)
    read = tf.function(lambda: weight + count)
    written = []

    @tf.function(autograph=False)
    def step() -> None:
        graph = tf.compat.v1.get_default_graph()
        with _tf_private.trained_variables() as trained:
            weight.assign_sub(read())
            count.assign_add(1.0)
        assert [variable is weight for variable in trained] == [True]
        handles = {graph.capture(variable.handle).ref(): variable for variable in (weight, count)}
        for operation in graph.get_operations():
            for resource in _tf_private.written_resources(operation):
                written.append(handles[resource.ref()])

    step.get_concrete_function()
    assert [variable is weight for variable in written] == [True, False]


def test_the_old_list_of_local_devices_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    device_lib = _tf_private.device_lib
    monkeypatch.setattr(device_lib, "list_local_devices", device_lib.list_local_devices)
    _tf_private.replace_local_devices(lambda original: lambda: [*original(), "one more"])
    found = device_lib.list_local_devices()
    assert found[0].name == "/device:CPU:0"
    # What stands in for a GPU is written into a copy of these.
    assert (found[0].device_type, found[0].physical_device_desc) == ("CPU", "")
    assert found[-1] == "one more"
