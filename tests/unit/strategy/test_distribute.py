"""`evener.distribute`: how it is called, and when a step is traced again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.errors import DataError, DeviceError, EngineError, PlanError
from evener.strategy.distribute import DistributedStep

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


class Counted:
    """A step that counts how often it is traced."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._shapes: list[list[tf.TensorShape]] = []

    @property
    def shapes(self) -> list[Any]:
        """The shapes of the arguments of each trace; in the trace, none of the sizes is read."""
        return [[shape.as_list() for shape in shapes] for shapes in self._shapes]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat = tf.nest.flatten((args, kwargs))
        self._shapes.append([each.shape for each in flat if isinstance(each, tf.Tensor)])
        return self.function(*args, **kwargs)


def distributed(function: Callable[..., Any], **options: Any) -> tuple[DistributedStep, Counted]:
    counted = Counted(function)
    return evener.distribute(counted, devices=DEVICES, **options), counted


def batch(num_samples: int, *shape: int) -> tf.Tensor:
    rng = np.random.default_rng(num_samples)
    return tf.constant(rng.normal(size=(num_samples, *shape)), tf.float32)


def test_it_is_a_decorator_with_and_without_arguments() -> None:
    def double(x: tf.Tensor) -> tf.Tensor:
        """Twice."""
        return x * 2.0

    with_arguments = evener.distribute(devices=DEVICES, shares=[1, 2, 1])(double)
    at_once = evener.distribute(double, devices=DEVICES[:2])
    of_function = evener.distribute(tf.function(double), devices=DEVICES)
    for step in (with_arguments, at_once, of_function):
        assert isinstance(step, DistributedStep)
        assert (step.__name__, step.__doc__) == ("double", "Twice.")
        np.testing.assert_array_equal(step(batch(5, 3)), batch(5, 3) * 2.0)
    assert with_arguments.devices == tuple(DEVICES)
    assert with_arguments.shares == (0.25, 0.5, 0.25)
    assert at_once.devices == ("cpu:0", "cpu:1")


def test_devices_and_shares_are_checked() -> None:
    with pytest.raises(DeviceError):
        evener.distribute(lambda x: x, devices=["cpu:0", "gpu:7"])
    for shares in ([1.0], [1.0, -1.0, 1.0], [0.0, 0.0, 0.0]):
        with pytest.raises(PlanError):
            evener.distribute(lambda x: x, devices=DEVICES, shares=shares)
    step = evener.distribute(lambda x: x, devices=DEVICES)
    with pytest.raises(PlanError):
        step.set_shares([1.0, 1.0])
    assert step.shares == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_arguments_are_checked() -> None:
    step, counted = distributed(lambda x, y: x + y, in_axes=[(0, 0)])
    with pytest.raises(DataError, match="DATA-011"):
        step(batch(4), batch(4))
    step, counted = distributed(lambda x, y: x + y, in_axes=(0, 0))
    with pytest.raises(DataError, match="DATA-010"):
        step(batch(4), batch(5))
    with pytest.raises(DataError, match="DATA-011"):
        step(batch(4))
    assert not counted.shapes


def test_shares_change_without_a_new_trace(parts: list[tuple[int, ...]]) -> None:
    step, counted = distributed(lambda x: tf.reduce_mean(tf.square(x), 0), shares=[2, 1, 1])
    x = batch(8, 3)
    results = [step(x)]
    for shares in ([1, 0, 3], [0, 1, 0], [1, 1, 1]):
        step.set_shares(shares)
        results.append(step(x))
    assert parts == [(4, 2, 2), (2, 0, 6), (0, 8, 0), (3, 2, 3)]
    assert len(counted.shapes) == 1
    for result in results:
        np.testing.assert_allclose(result, tf.reduce_mean(x * x, 0), rtol=1e-6)


def test_batches_of_all_sizes_have_one_trace(parts: list[tuple[int, ...]]) -> None:
    step, counted = distributed(lambda x, y: (x * y[:, None], tf.reduce_sum(y)))
    for size in (6, 1, 7, 2, 60):
        x, y = batch(size, 3), batch(size)
        product, total = step(x, y)
        np.testing.assert_allclose(product, x * y[:, None], rtol=1e-6)
        np.testing.assert_allclose(total, tf.reduce_sum(y), rtol=1e-5)
    assert counted.shapes == [[[None, 3], [None]]]
    assert [sum(part) for part in parts] == [6, 1, 7, 2, 60]
    assert len(step.partitioned_steps) == 1


def test_a_second_length_opens_the_axis_and_a_third_is_served() -> None:
    step, counted = distributed(lambda x: tf.reduce_sum(x, 1))
    for size, length in ((4, 5), (3, 5), (4, 6), (2, 7), (5, 5)):
        x = batch(size, length)
        np.testing.assert_allclose(step(x), tf.reduce_sum(x, 1), rtol=1e-5, atol=1e-6)
    assert counted.shapes == [[[None, 5]], [[None, None]]]
    assert len(step.partitioned_steps) == 1


def test_other_kinds_of_arguments_have_traces_of_their_own() -> None:
    step, counted = distributed(lambda x, power: x**power)
    x = batch(4, 2)
    for args in ((x, 2), (x, 3), (x, 2), (tf.cast(x, tf.float64), 2), (x[0], 3), (x, 3)):
        np.testing.assert_allclose(step(*args), args[0] ** args[1], rtol=1e-6)
    assert len(counted.shapes) == 4


def test_a_step_that_asks_for_the_number_of_samples_has_a_trace_for_each() -> None:
    def mean(x: tf.Tensor) -> Any:
        return tf.reduce_sum(x, 0) / len(x), tf.exp(x) * len(x) + tf.zeros([x.shape[0], 2])

    step, counted = distributed(mean)
    for size in (4, 6, 4, 6, 5):
        x = batch(size, 2)
        total, rows = step(x)
        np.testing.assert_allclose(total, tf.reduce_mean(x, 0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(rows, tf.exp(x) * size, rtol=1e-6)
    fixed = [shape for shape in counted.shapes if shape[0][0] is not None]
    # Each with a trace for batches twice as large, which shows what counts samples.
    assert fixed == [[[size, 2]] for size in (4, 8, 6, 12, 5, 10)]
    assert len(step.partitioned_steps) == 3
    # It is computed in parts all the same.
    assert step.report().num_operations > 0 and not step.report().gathered


def test_an_error_of_the_step_is_shown_once_it_is_no_matter_of_sizes() -> None:
    step, counted = distributed(lambda x: x @ tf.ones([5, 5]))
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        step(batch(4, 3))
    assert not step.partitioned_steps
    assert len(counted.shapes) == 2


def test_a_batch_without_samples_gives_what_one_device_gives() -> None:
    step, _ = distributed(lambda x: (tf.reduce_sum(x), tf.reduce_max(x, 0), x * 2.0))
    total, largest, rows = step(batch(0, 3))
    assert float(total) == 0.0
    assert largest.numpy().tolist() == [float("-inf")] * 3
    assert rows.shape == (0, 3)


def test_arguments_that_are_no_batch_are_computed_once() -> None:
    step, _ = distributed(lambda scale: scale * 2.0)
    assert float(step(tf.constant(3.0))) == 6.0
    assert step(2.5) == 5.0


def test_keyword_arguments_and_nests() -> None:
    step, counted = distributed(lambda batch, *, scale=1.0, names=(): batch["x"] * scale)
    x = batch(5, 2)
    for scale in (1.0, 3.0):
        result = step({"x": x, "y": batch(5)}, scale=scale, names=["a"])
        np.testing.assert_allclose(result, x * scale)
    assert len(counted.shapes) == 2


def test_axes_of_ones_own() -> None:
    step, counted = distributed(
        lambda x, w: tf.tensordot(x, w, [[0], [0]]), in_axes=(1, None), shares=[1, 3, 1]
    )
    x, w = batch(3, 7), batch(3, 4)
    np.testing.assert_allclose(step(x, w), tf.transpose(x) @ w, rtol=1e-5)
    assert counted.shapes == [[[3, None], [3, 4]]]
    for in_axes in (0, None, (0, None)):
        other, _ = distributed(lambda x, w: tf.transpose(x) @ w, in_axes=in_axes)
        np.testing.assert_allclose(other(x, w), tf.transpose(x) @ w, rtol=1e-4, atol=1e-6)


def test_variables_are_updated_once() -> None:
    weight, count = tf.Variable([1.0, 2.0]), tf.Variable(0)

    def update(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, weight)))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        count.assign_add(1)
        return loss

    step, _ = distributed(update)
    x, losses = batch(7, 2), []
    for _ in range(3):
        losses.append(float(step(x)))
    given = weight.numpy()
    weight.assign([1.0, 2.0])
    assert int(count) == 3
    np.testing.assert_allclose(losses, [float(update(x)) for _ in range(3)], rtol=1e-5)
    np.testing.assert_allclose(given, weight, rtol=1e-5)


def test_a_step_in_a_function() -> None:
    step, counted = distributed(lambda x: (tf.reduce_sum(x, 0), x + 1.0))
    shapes = []

    @tf.function
    def several(x: tf.Tensor) -> Any:
        total = tf.zeros([3])
        for _ in tf.range(2):
            part, rows = step(x)
            shapes.append(rows.shape.as_list())
            total += part
        return total

    for size in (4, 4, 4):
        x = batch(size, 3)
        np.testing.assert_allclose(several(x), 2 * tf.reduce_sum(x, 0), rtol=1e-5)
    assert shapes[-1] == [4, 3]
    assert counted.shapes == [[[None, 3]]]


def test_a_step_in_a_function_for_all_sizes(parts: list[tuple[int, ...]]) -> None:
    step, counted = distributed(lambda x, y: tf.reduce_sum(x * y, 0))

    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None, 3])])
    def outer(x: tf.Tensor, y: tf.Tensor) -> Any:
        return step(x, y) * 2.0

    for size in (1, 5, 9, 0):
        x = batch(size, 3)
        np.testing.assert_allclose(outer(x, x), 2 * tf.reduce_sum(x * x, 0), rtol=1e-5)
    assert counted.shapes == [[[None, 3], [None, 3]]]
    assert parts == []


def test_unknown_sizes_are_equal_where_the_step_needs_it() -> None:
    """Tensors that never meet may have sizes of their own."""

    def in_a_function(function: Callable[..., Any]) -> Any:
        specs = [tf.TensorSpec([None, 3]), tf.TensorSpec([None])]
        step, _ = distributed(function)
        return tf.function(lambda x, y: step(x, y), input_signature=specs)

    product = in_a_function(lambda x, y: tf.reduce_sum(x * y[:, None]))
    assert float(product(tf.ones([4, 3]), tf.ones([4]))) == 12.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="DATA-010"):
        product(tf.ones([4, 3]), tf.ones([7]))
    apart = in_a_function(lambda x, y: tf.reduce_sum(x) + tf.cast(tf.shape(y)[0], tf.float32))
    for size in (4, 7):
        assert float(apart(tf.ones([4, 3]), tf.ones([size]))) == 12.0 + size


def test_the_report_names_the_operation_its_line_and_its_bytes() -> None:
    def ranked(x: tf.Tensor) -> tf.Tensor:
        return tf.sort(tf.tanh(x), axis=0)

    step, _ = distributed(ranked)
    assert step.report().gathered == ()
    step(batch(6, 5))
    report = step.report()
    gathered = next(found for found in report.gathered if found.operation != "Transpose")
    line = ranked.__code__.co_firstlineno + 1
    assert f"{Path(__file__).name}:{line}" in {Path(found.line).name for found in report.gathered}
    assert gathered.num_bytes == 5 * 4
    assert gathered.name
    assert report.num_operations >= 1


def test_composite_arguments() -> None:
    step, counted = distributed(lambda x, r: tf.reduce_sum(x, 1) + tf.reduce_sum(r, 1))
    for rows in ([[1.0], [], [2.0, 3.0]], [[1.0], [5.0]]):
        ragged = tf.ragged.constant(rows)
        x = batch(len(rows), 2)
        expected = tf.reduce_sum(x, 1) + tf.reduce_sum(ragged, 1)
        np.testing.assert_allclose(step(x, ragged), expected, rtol=1e-6)
    assert len(counted.shapes) <= 2


def test_a_step_runs_eagerly_where_that_is_asked_for() -> None:
    seen = []

    def step(x: tf.Tensor) -> tf.Tensor:
        seen.append(float(tf.reduce_sum(x)))
        return 2.0 * x

    made, _ = distributed(step)
    tf.config.run_functions_eagerly(True)
    try:
        result = made(tf.ones([4, 2]))
    finally:
        tf.config.run_functions_eagerly(False)
    assert seen == [8.0]
    np.testing.assert_array_equal(result, np.full([4, 2], 2.0))


@pytest.mark.parametrize("signature", [None, [tf.TensorSpec([None, 2])]])
def test_numbers_of_a_seed_begin_anew_where_one_device_traces_again(signature: Any) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return x * tf.random.uniform(tf.shape(x)) + tf.random.normal([2])

    found = []
    for is_spread in (False, True):
        tf.random.set_seed(3)
        call: Any = tf.function(step, input_signature=signature)
        if is_spread:
            call = evener.distribute(call, devices=["cpu:0", "cpu:1"])
        found.append([call(tf.ones([size, 2])).numpy() for size in (4, 4, 3, 4, 3)])
    for expected, numbers in zip(*found, strict=True):
        np.testing.assert_allclose(numbers, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "keyword"),
    [
        ("cpu:2", "devices="),
        (["cpu:0"], "devices="),
        (evener.Plan.data_parallel(["cpu:0"]), "plan="),
    ],
)
def test_what_is_no_step_is_refused_with_the_keyword_to_write(given: Any, keyword: str) -> None:
    with pytest.raises(EngineError) as caught:
        evener.distribute(given)
    assert caught.value.code == "ENG-099"
    assert keyword in caught.value.fix
