"""Tensors among arguments, their axes that count samples, and traces that are used again."""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from evener.errors import DataError
from evener.strategy.arguments import FOUND, read_arguments

Pair = collections.namedtuple("Pair", ["a", "b"])
# Arrays: tensors must not be made before the devices are.
X, Y = np.ones([4, 3], "float32"), np.zeros([4], "float32")


class Mode(enum.Enum):
    TRAIN = 1
    TEST = 2


def axes_of(args: Any, in_axes: Any = FOUND) -> tuple[int | None, ...]:
    return read_arguments(args, in_axes).axes


@pytest.mark.parametrize(
    ("args", "axes"),
    [
        ((X, Y), (0, 0)),
        ((X, np.ones([3], "float32")), (0, None)),
        ((X, np.float32(1.0), Y), (0, None, 0)),
        ((np.ones([2, 9], "float32"), np.ones([3, 5], "float32")), (0, None)),
        (({"y": Y, "x": X}, [X]), (0, 0, 0)),
        ((np.float32(1.0),), (None,)),
        ((), ()),
        ((5, "text", None), ()),
        ((np.zeros([0, 3], "float32"), np.zeros([0], "float32")), (0, 0)),
    ],
)
def test_axes_are_found_by_the_size_of_the_largest_tensor(args: Any, axes: Any) -> None:
    assert axes_of(args) == axes


def test_tensors_have_the_names_of_parameters() -> None:
    def step(x: Any, /, pair: Any, *more: Any, mask: Any = None, **others: Any) -> None:
        del x, pair, more, mask, others

    arguments = read_arguments(((X, [X, 5, Y], Y), {"mask": Y, "a": X}))
    assert arguments.names(step) == ["x", "pair", "pair", "args_0", "a", "mask"]
    # Functions in C have no signature.
    assert read_arguments(((X, Y), {})).names(next) == ["args_0", "args_1"]


def test_unknown_sizes_count_samples() -> None:
    found = []

    @tf.function(
        input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([4]), tf.TensorSpec(None)]
    )
    def traced(x: tf.Tensor, y: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        arguments = read_arguments((x, y, z))
        found.append((arguments.axes, arguments.num_samples))
        return x

    traced.get_concrete_function()
    assert found == [((0, None, None), None)]


@pytest.mark.parametrize(
    ("args", "in_axes", "axes"),
    [
        ((X, Y), 0, (0, 0)),
        ((X, Y), None, (None, None)),
        ((X, Y), (0, None), (0, None)),
        ((X, Y), [1, 0], (1, 0)),
        ((X, {"a": X, "b": Y}), (None, 0), (None, 0, 0)),
        ((X, {"b": Y, "a": X}), (None, {"b": 0, "a": 1}), (None, 1, 0)),
        ((X, (X, [Y, Y])), (0, (1, None)), (0, 1, None, None)),
        ((Pair(X, Y), 3), (Pair(1, 0), None), (1, 0)),
        ((X, 3, Y), (0, None, 0), (0, 0)),
        (((), X), (0, 1), (1,)),
        ((X, None), (0, 0), (0,)),
    ],
)
def test_axes_are_given_as_a_prefix_of_the_arguments(args: Any, in_axes: Any, axes: Any) -> None:
    assert axes_of(args, in_axes) == axes


@pytest.mark.parametrize(
    ("args", "in_axes", "parts"),
    [
        ((X, Y), (0,), ["in_axes=(0,)", "float32[4, 3]", "float32[4]", "(0, None)"]),
        ((X,), (0, 0), ["in_axes=(0, 0)", "float32[4, 3]"]),
        ((X, {"a": Y}), (0, {"b": 0}), ["{'b': 0}", "'a'", "float32[4]"]),
        ((X, Y), ("0", 0), ["in_axes='0'"]),
        ((X, 3), ((0,), 0), ["in_axes=(0,)", "float32[4, 3]"]),
        ((X, Y), (2, 0), ["axis 2", "(4, 3)", "0 to 1"]),
        ((X, Y), (-1, 0), ["axis -1", "(4, 3)", "0 to 1"]),
        ((np.float32(1.0),), (0,), ["axis 0", "scalar"]),
    ],
)
def test_axes_that_do_not_fit(args: Any, in_axes: Any, parts: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        read_arguments(args, in_axes)
    assert caught.value.code == ("DATA-012" if parts[0].startswith("axis") else "DATA-011")
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.fix


def test_different_numbers_of_samples() -> None:
    arguments = read_arguments((X, np.ones([5], "float32"), Y), (0, 0, 0))
    with pytest.raises(DataError) as caught:
        _ = arguments.num_samples
    assert caught.value.code == "DATA-010"
    for part in ("4 (tensor 0)", "5 (tensor 1)", "in_axes", "None"):
        assert part in str(caught.value)
    assert read_arguments((X, np.ones([5], "float32"), Y), (0, None, 0)).num_samples == 4
    assert read_arguments((X, np.ones([5], "float32")), None).num_samples is None
    assert read_arguments((np.ones([2, 7], "float32"), Y), (1, None)).num_samples == 7


def test_arrays_become_tensors_and_the_rest_stays() -> None:
    given = ({"x": np.ones([4, 3], "float32"), "n": 3}, np.float64(2.0), "text", None, [Y])
    arguments = read_arguments(given)
    assert [t.dtype for t in arguments.tensors] == [tf.float32, tf.float64, tf.float32]
    assert all(isinstance(tensor, tf.Tensor) for tensor in arguments.tensors)
    packed = arguments.pack(["x", "two", "y"])
    assert packed == ({"x": "x", "n": 3}, "two", "text", None, ["y"])


def test_the_structure_is_kept() -> None:
    packed = read_arguments((Pair(X, 5), {"b": Y, "a": (X,)})).pack([1, 2, 3])
    assert packed == (Pair(1, 5), {"a": (2,), "b": 3})
    assert isinstance(packed[0], Pair)


@pytest.mark.parametrize(
    "made",
    [
        lambda: tf.ragged.constant([[1.0, 2.0], [], [3.0], [4.0]]),
        lambda: tf.sparse.from_dense([[1.0, 0.0]] * 4),
        lambda: tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, 2]), tf.constant([4, 3])),
    ],
    ids=["ragged", "sparse", "slices"],
)
@pytest.mark.parametrize("in_axes", [FOUND, (0, None), (0, 0)])
def test_composite_tensors_are_taken_apart_and_put_together(
    made: Callable[[], Any], in_axes: Any
) -> None:
    composite = made()
    arguments = read_arguments((X, composite), in_axes)
    assert arguments.axes[0] == 0
    assert set(arguments.axes[1:]) == {None}
    _, again = arguments.pack(arguments.tensors)
    assert type(again) is type(composite)
    np.testing.assert_array_equal(dense(again), dense(composite))


def dense(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        return value.to_tensor()
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.to_dense(value)
    return tf.convert_to_tensor(value)


def test_composite_tensors_of_other_rows_are_served_by_one_trace() -> None:
    rows = [tf.ragged.constant([[1.0]] * count) for count in (2, 5)]
    keys = [read_arguments((row,)).key() for row in rows]
    assert keys[0] == keys[1] and hash(keys[0]) == hash(keys[1])
    other = read_arguments((tf.ragged.constant([[[1.0]]]),)).key()
    assert other != keys[0]


def test_variables_are_no_tensors_of_the_batch() -> None:
    variable = tf.Variable(np.ones([4, 3], "float32"))
    arguments = read_arguments((X, variable))
    assert arguments.axes == (0,)
    assert arguments.pack([X])[1] is variable


LAYER = object()


@pytest.mark.parametrize(
    ("first_value", "second_value", "is_same"),
    [
        ((X, 1), (np.zeros([7, 3], "float32"), 1), True),
        ((X, 1), (X, 2), False),
        ((X, 1), (X, 1.0), False),
        ((X, 1), (X, True), False),
        ((X, "a"), (X, "a"), True),
        ((X, None), (X, None), True),
        ((X, None), (X, 0), False),
        ((X, LAYER), (X, LAYER), True),
        ((X, object()), (X, object()), False),
        ((X, Mode.TRAIN), (X, Mode.TRAIN), True),
        ((X, Mode.TRAIN), (X, Mode.TEST), False),
        ((X, Y), ((X, Y),), False),
        ((X, {"a": 1}), (X, {"a": 1}), True),
        ((X, {"a": 1}), (X, {"b": 1}), False),
        ((X,), (X.astype("float64"),), False),
        ((X,), (np.ones([4, 3, 1], "float32"),), False),
        ((X, Y), (X, np.zeros([5], "float32")), False),
        ((X, (1, 2)), (X, [1, 2]), False),
    ],
)
def test_a_trace_serves_arguments_with_an_equal_key(
    first_value: Any, second_value: Any, is_same: bool
) -> None:
    first, second = read_arguments(first_value).key(), read_arguments(second_value).key()
    assert (first == second) == is_same
    if is_same:
        assert hash(first) == hash(second)
        assert {first: "trace"}[second] == "trace"


def test_keys_differ_by_their_axes() -> None:
    assert read_arguments((X, Y), 0).key() != read_arguments((X, Y), (0, None)).key()
