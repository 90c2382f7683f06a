"""Times of layers. What a clock says is never compared with a number of seconds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener.errors import ProfileError
from evener.graph.functions import TensorArgument
from evener.graph.ops.states import Sharded
from evener.graph.trace import TracedStep, trace_step
from evener.profile import Curve, LayerCosts
from evener.profiler.device_speed import DeviceSpeed
from evener.profiler.layer_costs import layer_costs
from evener.profiler.layers import split_step
from evener.profiler.measure import (
    Calls,
    Clock,
    SyntheticValues,
    index_limits,
    measure_step,
    with_workspace,
)
from evener.profiler.profile import trace_keras_step
from unit.profiler.models import dense, sequence, traced

CPU = "/device:CPU:0"
SPEED = DeviceSpeed(flops=(("float32", 1e9),), bytes_per_second=1e9, launch_seconds=1e-6)


class Counting(Clock):
    """Runs what it is given once, and says that every call takes a second per function."""

    def __init__(self) -> None:
        super().__init__(CPU, now=itertools.count().__next__, wait=lambda: None)
        self.runs: list[tuple[int, int]] = []

    def measure(self, calls: Calls, arguments: Any) -> float:
        results = calls.loop(tf.constant(2), *arguments)
        assert len(results) == len(calls.results)
        # Numbers of samples are plain ones.
        sizes = [np.shape(argument)[0] for argument in arguments if len(np.shape(argument))]
        self.runs.append((len(calls.results), max(sizes, default=0)))
        return float(len(calls.results))


def test_every_layer_has_curves_that_are_positive_and_do_not_fall() -> None:
    step = traced(sequence((8,), dense(16, "a", "tanh"), dense(4, "b"), dense(1, "c")), (1,))
    seen: list[tuple[int, int, str]] = []
    found = measure_step(step, "cpu:0", [16, 1, 4], progress=lambda *call: seen.append(call))
    times = found.layers
    assert len(times) == len(layer_costs(step).layers)
    assert seen == [(0, 3, "a"), (1, 3, "b"), (2, 3, "c")]
    for layer in times:
        for curve in (layer.forward, layer.backward):
            assert [samples for samples, _ in curve.points] == [1, 4, 16]
            seconds = [took for _, took in curve.points]
            assert seconds == sorted(seconds)
            assert seconds[0] >= 0
        assert layer.forward(1) > 0
        assert layer.update_seconds > 0


def test_what_kernels_need_is_seen() -> None:
    # The gradient of pooling needs more than its input and its result, which no tensor shows.
    pool = layers.MaxPooling2D(name="pool")
    model = sequence(
        (32, 32, 32), layers.Conv2D(32, 1, name="conv"), pool, layers.Flatten(), dense(1, "head")
    )
    step = traced(model, (1,))
    found = measure_step(step, "cpu:0", [1, 64], clock=Counting())
    names = [layer.name for layer in layer_costs(step).layers]
    workspace = found.layers[names.index("pool")].workspace
    assert workspace is not None
    assert workspace(64) > 2**20
    # Of a product of small matrices there is nothing to see.
    head = found.layers[names.index("head")].workspace
    assert head is not None
    assert head(64) < 2**20


def test_what_a_layer_hands_over_is_no_workspace() -> None:
    """The allocator may take more for a result than it has bytes."""
    step = traced(sequence((1024,), dense(1024, "a"), dense(1024, "b"), dense(1, "c")), (1,))
    found = measure_step(step, "cpu:0", [32, 108], clock=Counting())
    workspace = found.layers[1].workspace
    assert workspace is not None
    # Without an activation the gradient of b only makes what it hands over: sums of 4 MiB.
    assert workspace(108) < 2**20


def test_the_greatest_workspace_of_all_devices_counts() -> None:
    costs = LayerCosts(name="a", workspace_bytes=1.0)
    assert with_workspace(costs, [None, None]) == costs
    seen = [Curve(((1, 10.0), (3, 30.0))), None, Curve(((1, 5.0), (2, 40.0)))]
    kernels = with_workspace(costs, seen).kernel_workspace
    assert kernels == Curve(((1, 10.0), (2, 40.0), (3, 75.0)))


@pytest.mark.long
def test_layers_of_one_kind_are_measured_once() -> None:
    def runs(num_blocks: int) -> int:
        blocks = [dense(6, f"block_{k}", "tanh") for k in range(num_blocks)]
        step = traced(sequence((6,), *blocks, dense(1, "head")), (1,))
        clock = Counting()
        found = measure_step(step, "cpu:0", [2], clock=clock)
        assert len(found.layers) == num_blocks + 1
        return len(clock.runs)

    few = runs(3)
    keras.utils.clear_session(free_memory=False)
    assert runs(6) == few


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "body",
    [
        lambda: [layers.LSTM(4, name="x")],
        lambda: [layers.Conv1D(4, 2, name="x"), layers.BatchNormalization(), layers.Flatten()],
        lambda: [layers.MultiHeadAttention(2, 4, name="x")],
        lambda: [layers.Dropout(0.5, name="x"), layers.LayerNormalization(), layers.Flatten()],
    ],
    ids=["lstm", "convolution", "attention", "dropout"],
)
def test_layers_of_many_families_can_be_called_alone(body: Any) -> None:
    x = keras.Input((5, 3))
    y: Any = x
    for layer in body():
        y = layer(y, y) if isinstance(layer, layers.MultiHeadAttention) else layer(y)
    model = keras.Model(x, dense(1, "head")(layers.Flatten()(y)))
    clock = Counting()
    found = measure_step(traced(model, (1,)), "cpu:0", [3], clock=clock)
    assert found.not_measured == ()
    assert clock.runs


def test_what_cannot_be_called_alone_is_estimated_and_told() -> None:
    table = tf.Variable(tf.ones([8, 4]))
    inner = dense(4, "inner")
    inner.build((None, 4))

    class FromText(keras.layers.Layer):
        def call(self, text: Any) -> Any:
            return tf.matmul(tf.one_hot(tf.strings.to_hash_bucket_fast(text, 8), 8), table)

    words = FromText(name="words")

    def step(text: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(inner(words(text))))
        variables = [table, inner.kernel.value]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    spec = tf.TensorSpec([None], tf.string)
    split = split_step(trace_step(step, [spec], [0], autograph=False, with_layers=True))
    assert split.chain.names == ("words", "inner")
    found = measure_step(split, "cpu:0", [1, 8], speed=SPEED, clock=Counting())
    (told,) = found.not_measured
    assert told.startswith("words: ")
    assert "string" in told
    assert 0 < found.layers[0].forward(1) <= found.layers[0].forward(8)


def test_operations_may_refuse_values_that_are_made_up() -> None:
    """As the update of an embedding by RMSprop, which gathers rows by numbers that it finds."""

    class Positive(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.sigmoid(x)

    class Row(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            rows = tf.cast(tf.floor(x), tf.int32)
            return x + tf.gather(tf.constant([1.0, 2.0]), rows)

    model = sequence((4,), Positive(name="positive"), Row(name="row"), dense(1, "head"))
    step = traced(model, (1,))
    found = measure_step(step, "cpu:0", [1, 8], speed=SPEED, whole_at=8)
    (reason,) = found.not_measured
    assert reason.startswith("row: ")
    assert "synthetic" in reason
    names = [layer.name for layer in layer_costs(step).layers]
    assert found.layers[names.index("row")].forward(8) > 0


@pytest.mark.long
def test_layers_are_held_against_one_call_of_all() -> None:
    """Of a clock that says a second per result: 3 layers one by one, and all of them at once."""
    blocks = [dense(6, f"block_{k}", "tanh") for k in range(2)]
    step = traced(sequence((6,), *blocks, dense(1, "head")), (1,))
    alone = measure_step(step, "cpu:0", [2, 8], clock=Counting())
    clock = Counting()
    found = measure_step(step, "cpu:0", [2, 8], clock=clock, whole_at=8)
    assert alone.in_step == 1
    total = sum(layer.forward(8) + layer.backward(8) for layer in alone.layers)
    whole = max(count for count, size in clock.runs if size == 8)
    assert found.in_step == pytest.approx(whole / total)
    for corrected, measured in zip(found.layers, alone.layers, strict=True):
        assert corrected.forward(2) == pytest.approx(found.in_step * measured.forward(2))
        assert corrected.backward(8) == pytest.approx(found.in_step * measured.backward(8))
        assert corrected.update_seconds == measured.update_seconds


def test_backward_passes_are_also_measured_in_calls_of_their_own() -> None:
    """As stages make them. Of a clock that says a second per result, with what layers hand on."""
    body = [layers.Conv2D(4, 3, name="conv"), layers.MaxPooling2D(name="pool"), layers.Flatten()]
    step = traced(sequence((6, 6, 2), *body, dense(1, "head")), (1,))
    clock = Counting()
    found = measure_step(step, "cpu:0", [2], clock=clock)
    split = split_step(step, device="cpu:0")
    for name, tasks, costs in zip(split.chain.names, split.layers, found.layers, strict=True):
        results = sum(len(task.fetches) for task in tasks.backward)
        assert costs.backward_separate is not None, name
        assert costs.backward_separate(2) == max(results, costs.backward(2))
    # The gradient of the pooling, which reads what the forward pass has handed on.
    ops = {node.op for task in split.layers[1].backward for node in task.nodes}
    assert "MaxPoolGrad" in ops


def test_a_step_is_called_from_python_once() -> None:
    step = traced(sequence((6,), dense(4, "a"), dense(1, "b")), (1,))
    seconds: list[float] = []
    for overhead in (0.0, 7.0):
        clock = Counting()
        clock.overhead = overhead
        seconds.append(measure_step(step, "cpu:0", [2], clock=clock).overhead_seconds)
    assert seconds[1] - seconds[0] == 7.0


@pytest.mark.parametrize("sizes", [[], [0], [-4, 4]])
def test_numbers_of_samples_have_to_be_above_zero(sizes: list[int]) -> None:
    step = traced(sequence((2,), dense(2, "a"), dense(1, "b")), (1,))
    with pytest.raises(ProfileError, match="PROF-011"):
        measure_step(step, "cpu:0", sizes)


DISTURBED = itertools.cycle((1.0, 3.0, 1.0, 0.5, 1.0))


@pytest.mark.parametrize(
    "seconds",
    [
        # Every fifth call is disturbed, and every fifth one finds everything at its best.
        lambda count: 0.003 * count * next(DISTURBED),
        # Calls take 3 seconds each in a world where a loop takes 10 to start.
        lambda count: 0.01 + 0.003 * count,
    ],
    ids=["the median", "without the start of a loop"],
)
def test_a_clock_takes(seconds: Callable[[int], float]) -> None:
    time = [0.0]

    class Loop:
        results = arguments = ()

        @staticmethod
        def loop(count: tf.Tensor) -> list[Any]:
            time[0] += seconds(int(count))
            return []

    clock = Clock(CPU, now=lambda: time[0], wait=lambda: None)
    untyped: Any = Loop()
    assert clock.measure(untyped, ()) == pytest.approx(0.003)


ROWS, CLASSES = 50, 7


def words() -> TracedStep:
    model = sequence(
        (4,),
        layers.Embedding(ROWS, 3, name="words"),
        layers.Flatten(),
        dense(CLASSES, "head"),
        dtype="int32",
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return trace_keras_step(model, tf.TensorSpec([4], tf.int32), tf.TensorSpec([], tf.int32))


def test_samples_name_rows_of_their_table_and_labels_classes() -> None:
    graph = words().graph
    limits = index_limits(graph, {})
    assert limits[graph.inputs[0]] == ROWS
    losses = [node for node in graph if node.op == "SparseSoftmaxCrossEntropyWithLogits"]
    assert limits[losses[0].inputs[1]] == CLASSES
    sums = [node for node in graph if node.op == "UnsortedSegmentSum"]
    assert sums
    assert all(limits[node.inputs[1]] == ROWS for node in sums)


def test_made_up_samples_name_many_rows() -> None:
    step = words()
    held = {variable.handle: variable for variable in split_step(step).variables}
    values = SyntheticValues(32, held, index_limits(step.graph, {}))
    rows = values.value(TensorArgument(step.graph.inputs[0], Sharded(0)))
    assert rows.shape == (32, 4)
    found = tf.unique(tf.reshape(rows, [-1])).y.numpy()
    assert found.min() >= 0
    assert found.max() < ROWS
    assert len(found) > ROWS / 2
    # Steps without integers have no limits.
    step = traced(sequence((3,), dense(2, "a"), dense(1, "b")), (1,))
    assert index_limits(step.graph, {}) == {}
