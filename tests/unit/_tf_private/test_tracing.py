"""Steps while they are traced: unknown sizes are noticed, and batch norm is in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener import Plan
from evener._tf_private.tracing import batch_norm_in_parts, noticing_unknown_sizes

pytestmark = pytest.mark.usefixtures("logical_cpus", "patches_undone")

ASKING: dict[str, Callable[[Any], Any]] = {
    "item": lambda x: x.shape[0],
    "last": lambda x: x.shape[:1][-1],
    "iterated": lambda x: [size for size in x.shape],
    "unpacked": lambda x: (lambda b, n: b)(*x.shape),
    "list": lambda x: x.get_shape().as_list(),
    "elements": lambda x: x.shape.num_elements(),
    "no file": eval("lambda x: x.shape[0]"),
    "draws of one sample for all": lambda x: keras.ops.image.elastic_transform(
        tf.reshape(x, [-1, 1, 3, 1])
    ),
}
NOT_ASKING: dict[str, Callable[[Any], Any]] = {
    "known": lambda x: x.shape[1],
    "rank": lambda x: x.shape.rank,
    "operation": lambda x: tf.reshape(x, [tf.shape(x)[0], -1]),
    "part": lambda x: x.shape[1:].as_list(),
    "library": lambda x: keras.ops.shape(x),
    "layer": keras.layers.Flatten(),
}


def asks(function: Callable[[Any], Any]) -> bool:
    def step(x: tf.Tensor) -> tf.Tensor:
        function(x)
        return x

    with noticing_unknown_sizes() as found:
        tf.function(step).get_concrete_function(tf.TensorSpec([None, 3]))
    return found.is_asked


@pytest.mark.parametrize("name", [*ASKING, *NOT_ASKING])
def test_it_is_noticed_where_it_is_asked(name: str) -> None:
    assert asks({**ASKING, **NOT_ASKING}[name]) == (name in ASKING)


def test_nothing_stays_changed() -> None:
    before = tf.TensorShape.__getitem__
    with noticing_unknown_sizes(), noticing_unknown_sizes():
        assert tf.TensorShape.__getitem__ is not before
    assert tf.TensorShape.__getitem__ is before


fused = tf.compat.v1.nn.fused_batch_norm
SCALE, OFFSET = np.float32([1.0, 2.0, 3.0]), np.float32([0.0, 1.0, -2.0])
BEFORE = {"mean": np.float32([0.1, 0.2, 0.3]), "variance": np.float32([1.0, 2.0, 0.5])}
# Of 16 bits, the last ones may differ.
WITHIN = {tf.float32: 5e-6, tf.float16: 2.0**-8, tf.bfloat16: 2.0**-5}


def given(dtype: tf.DType, shape: tuple[int, ...]) -> tf.Tensor:
    return tf.cast(3.0 * tf.random.stateless_normal(shape, (1, 2)) + 7.0, dtype)


def computed(x: tf.Tensor, **options: Any) -> list[np.ndarray]:
    """Return what is computed, and the gradients of a weighted sum of squares."""

    @tf.function
    def compute(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            found = tf.compat.v1.nn.fused_batch_norm(x, scale, offset, **options)
            weights = tf.reshape(tf.range(tf.size(x), dtype=tf.float32), tf.shape(x))
            loss = tf.reduce_mean(weights * tf.cast(found[0], tf.float32) ** 2)
        return [*found, *tape.gradient(loss, [x, scale, offset])]

    arguments = x, tf.constant(SCALE), tf.constant(OFFSET)
    return [np.asarray(tf.cast(each, tf.float32)) for each in compute(*arguments)]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(6, 5, 4, 3), (2, 3, 4, 4, 3)], ids=["images", "volumes"])
@pytest.mark.parametrize("factor", [1.0, 0.01])
@pytest.mark.parametrize("is_training", [True, False])
def test_it_is_what_the_kernel_gives(
    dtype: tf.DType, shape: tuple[int, ...], factor: float, is_training: bool
) -> None:
    options = {
        **({} if is_training and factor == 1.0 else BEFORE),
        "is_training": is_training,
        "exponential_avg_factor": factor,
        "data_format": "NHWC" if len(shape) == 4 else "NDHWC",
    }
    x = given(dtype, shape)
    expected = computed(x, **options)
    with batch_norm_in_parts():
        found = computed(x, **options)
    for got, wanted in zip(found, expected, strict=True):
        within = WITHIN[dtype]
        np.testing.assert_allclose(got, wanted, rtol=within, atol=within * np.abs(wanted).max())


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("is_training", [True, False])
def test_gradients_of_its_gradients(is_training: bool, data_format: str) -> None:
    """As penalties of gradients need them: the variance depends on the mean there."""

    @tf.function
    def compute(x: tf.Tensor, scale: tf.Tensor) -> list[tf.Tensor]:
        options: dict[str, Any] = {"is_training": is_training, "data_format": data_format}
        with tf.GradientTape() as outer:
            outer.watch([x, scale])
            with tf.GradientTape() as inner:
                inner.watch(x)
                options |= {} if is_training else BEFORE
                y, *_ = tf.compat.v1.nn.fused_batch_norm(x, scale, OFFSET, **options)
                weights = tf.reshape(tf.range(tf.size(x), dtype=tf.float32), tf.shape(x))
                loss = tf.reduce_mean(weights * tf.tanh(y))
            gradient = inner.gradient(loss, x)
            penalty = tf.reduce_sum(gradient**2) + tf.reduce_sum(weights * gradient)
        return [gradient, *outer.gradient(penalty, [x, scale])]

    x = given(tf.float32, (2, 5, 4, 3) if data_format == "NHWC" else (2, 3, 5, 4))
    expected = compute(x, SCALE)
    plan = Plan.data_parallel(["cpu:0", "cpu:1"])
    distributed = evener.distribute(compute.python_function, plan=plan, in_axes=(0, None))
    found = distributed(x, tf.constant(SCALE))
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_only_the_first_result_has_gradients(is_training: bool, which: int) -> None:
    """Those of the input, the scale and the offset; the others are zero or none."""

    def has_gradients() -> list[bool]:
        @tf.function
        def compute(*given: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(given)
                results = tf.compat.v1.nn.fused_batch_norm(
                    *given, is_training=is_training, exponential_avg_factor=0.9
                )
                total = tf.reduce_sum(results[which] ** 3)
            none = tf.UnconnectedGradients.ZERO
            return tape.gradient(total, given, unconnected_gradients=none)

        arguments = [tf.constant(each) for each in (SCALE, OFFSET, *BEFORE.values())]
        found = compute(given(tf.float32, (6, 5, 4, 3)), *arguments)
        return [bool(np.any(each)) for each in found]

    expected = [which == 0] * 3 + [False] * 2
    with batch_norm_in_parts():
        assert has_gradients() == expected
    assert has_gradients() == expected


def test_channels_may_come_first() -> None:
    x = given(tf.float32, (6, 5, 4, 3))
    with batch_norm_in_parts():
        last = computed(x, data_format="NHWC")
        first = computed(tf.transpose(x, [0, 3, 1, 2]), data_format="NCHW")
    np.testing.assert_allclose(np.transpose(first[0], [0, 2, 3, 1]), last[0], rtol=1e-5, atol=1e-5)
    for got, wanted in zip(first[1:3], last[1:3], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "shape", "options"),
    [
        (tf.float64, (6, 5, 4, 3), {}),
        (tf.float32, (6, 3), {}),
        (tf.float32, (6, 5, 4, 3), {"is_training": False}),
    ],
    ids=["type", "rank", "statistics"],
)
def test_what_the_kernel_refuses_is_refused(
    dtype: tf.DType, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    x = given(dtype, shape)
    with pytest.raises((TypeError, ValueError)) as expected:
        computed(x, **options)
    with pytest.raises(expected.type), batch_norm_in_parts():
        computed(x, **options)


def test_parts_compute_it() -> None:
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = tf.compat.v1.nn.fused_batch_norm(x, SCALE, OFFSET)
            loss = tf.reduce_mean(found[0] ** 2 * x)
        return [*found, tape.gradient(loss, x)]

    x = given(tf.float32, (10, 5, 4, 3))
    expected = step(x)
    in_parts = evener.distribute(step, plan=Plan.data_parallel(["cpu:0", "cpu:1"], shares=[3, 1]))
    for got, wanted in zip(in_parts(x), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert "nothing is gathered" in str(in_parts.report())


def test_outside_of_steps_it_is_the_kernel() -> None:
    with batch_norm_in_parts():
        traced = tf.function(tf.compat.v1.nn.fused_batch_norm).get_concrete_function(
            given(tf.float32, (6, 5, 4, 3)), SCALE, OFFSET
        )
    assert "FusedBatchNormV3" not in {op.type for op in traced.graph.get_operations()}
    again = tf.function(lambda x: tf.compat.v1.nn.fused_batch_norm(x, SCALE, OFFSET)[0])
    graph = again.get_concrete_function(given(tf.float32, (6, 5, 4, 3))).graph
    assert "FusedBatchNormV3" in {op.type for op in graph.get_operations()}
    assert fused is not tf.compat.v1.nn.fused_batch_norm
