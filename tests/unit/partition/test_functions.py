"""Functions are made of nodes, with sizes computed from the numbers that a part is given."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from evener._tf_private import graphs
from evener.graph.dims import BATCH, evaluate, product, symbol
from evener.graph.functions import FunctionBuilder, NumberArgument, TensorArgument
from evener.graph.nodes import Node, SymbolTable
from evener.graph.ops.states import REPLICATED

T = symbol("T")
NAMES = ("B", "T", "b", "o")
SIZES = st.dictionaries(
    st.lists(st.sampled_from(NAMES), max_size=3).map(lambda item: tuple(sorted(item))),
    st.integers(-5, 5),
    max_size=4,
).map(
    lambda terms: sum((product(map(symbol, m)) * n for m, n in terms.items()), start=0)  # type: ignore
)


def made(*outputs: tuple[Callable[[FunctionBuilder], str], tf.DType]) -> FunctionBuilder:
    builder = FunctionBuilder("test", table=SymbolTable())
    for output, dtype in outputs:
        builder.output(output(builder), dtype)
    return builder


def call(
    builder: FunctionBuilder, numbers: Mapping[str, int], tensors: tuple[Any, ...] = ()
) -> list[np.ndarray]:
    given_tensors = iter(tensors)
    builder.register()

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        arguments = [
            tf.constant(numbers[argument.name])
            if isinstance(argument, NumberArgument)
            else tf.constant(next(given_tensors))
            for argument in builder.arguments
        ]
        return graphs.call(builder.function, arguments, builder.outputs, stateful=False)

    return [result.numpy() for result in run()]


@settings(max_examples=8)
@given(st.lists(SIZES, min_size=1, max_size=4), st.tuples(*[st.integers(0, 9)] * 4))
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_sizes_are_computed(dtype: tf.DType, sizes: list[Any], drawn: tuple[int, ...]) -> None:
    numbers = dict(zip(NAMES, drawn, strict=True))
    expected = [evaluate(size, numbers) for size in sizes]
    builder = made(
        (lambda builder: builder.vector(sizes, dtype), dtype),
        (lambda builder: builder.number(sizes[0], dtype), dtype),
        (lambda builder: builder.sizes(sizes, dtype, is_scalar=False), dtype),
        (lambda builder: builder.sizes(sizes[:1], dtype, is_scalar=True), dtype),
    )
    vector, number, same, scalar = call(builder, numbers)
    assert vector.dtype == number.dtype == dtype.as_numpy_dtype
    assert vector.tolist() == same.tolist() == expected
    assert number == scalar == expected[0]
    assert number.shape == scalar.shape == ()


@pytest.mark.parametrize("dtype", [tf.int64, tf.float32, tf.float64])
def test_large_products_do_not_wrap(dtype: tf.DType) -> None:
    """Of 100,000 rows and 100,000 columns there are more elements than int32 counts."""
    builder = made((lambda builder: builder.number(BATCH * T * 3 + 7, dtype), dtype))
    (number,) = call(builder, {"B": 100_000, "T": 100_000})
    assert number == np.asarray(30_000_000_007, dtype.as_numpy_dtype)


def test_numbers_and_constants_are_made_once() -> None:
    builder = made()
    first = builder.number(BATCH * 3 + 1, tf.int32)
    count = len(builder.definition.node_def)
    assert builder.number(BATCH * 3 + 1, tf.int32) == first
    assert builder.vector([BATCH, 2], tf.int32) == builder.vector([BATCH, 2], tf.int32)
    assert builder.number(BATCH * 3 + 1, tf.int64) != first
    assert len(builder.definition.node_def) > count
    assert list(builder.arguments) == [NumberArgument("B")]
    # Constants are told by dtype, shape and value.
    values = [(1, "int32"), (1, "int64"), ([1], "int32"), ([[1]], "int32"), (2, "int32")]
    values += [(1.0, "float32"), (True, "bool")]
    constants = [builder.constant(value, tf.as_dtype(dtype)) for value, dtype in values]
    assert len(set(constants)) == len(constants)
    assert builder.constant(1, tf.int32) == constants[0]
    assert builder.vector([1], "int32") == constants[2]


def test_constants_have_their_values() -> None:
    values: list[tuple[Any, tf.DType]] = [
        (3, tf.int32),
        ([[1.5, 2.5]], tf.float64),
        (True, tf.bool),
        (b"text", tf.string),
        (np.zeros([0, 2]), tf.float32),
        (float("-inf"), tf.bfloat16),
    ]
    builder = made()
    for value, dtype in values:
        builder.output(builder.constant(value, dtype), dtype)
    for (value, dtype), result in zip(values, call(builder, {}), strict=True):
        np.testing.assert_array_equal(result, tf.constant(value, dtype).numpy())
    empty = made((lambda builder: builder.vector([], tf.int32), tf.int32))
    assert call(empty, {})[0].shape == (0,)


def argument_of(shape: tuple[Any, ...], dtype: tf.DType) -> TensorArgument:
    (tensor,) = Node("x", "Placeholder", [], {}, dtypes=[dtype]).outputs
    tensor.shape = shape
    return TensorArgument(tensor, REPLICATED)


def test_arguments_are_added_when_they_are_asked_for() -> None:
    builder = made()
    x = argument_of((3,), tf.float32)
    name = builder.argument(x, tf.float32)
    assert builder.argument(x, tf.float32) == name
    assert builder.dtype_of(name) == tf.float32
    builder.number(BATCH * T, tf.int32)
    assert [arg.name for arg in builder.definition.signature.input_arg] == ["a0", "a1", "a2"]
    builder.output(builder.op("Exp", [name], {"T": tf.float32})[0], tf.float32)
    assert call(builder, {"B": 1, "T": 1}, (np.zeros(3, "float32"),))[0].tolist() == [1.0] * 3


def test_elements_and_casts() -> None:
    builder = made()
    x = builder.argument(argument_of((3,), tf.int64), tf.int64)
    element = builder.element(x, 1, tf.int64)
    builder.output(element, tf.int64)
    builder.output(builder.cast(element, tf.int64, tf.float32), tf.float32)
    # Attributes that an operation does not have are left out.
    (cast,) = builder.op("Cast", [element], {"SrcT": tf.int64, "DstT": "int32", "nope": 1})
    builder.output(cast, tf.int32)
    assert "nope" not in builder.definition.node_def[-1].attr
    assert builder.cast(element, tf.int64, tf.int64) == element
    assert builder.cast(element, tf.int64, tf.int32) == builder.cast(element, tf.int64, tf.int32)
    results = call(builder, {}, (np.asarray([5, 6, 7]),))
    assert [result.tolist() for result in results] == [6, 6.0, 6]
    assert [result.dtype.name for result in results] == ["int64", "float32", "int32"]


def test_names_are_unique_and_allowed() -> None:
    builder = made()
    x = builder.argument(argument_of((), tf.float32), tf.float32)
    for name in ("a/b", "a_b", "a0", "_hidden", "1st", "", "Exp", "Exp"):
        x = builder.op("Exp", [x], {"T": tf.float32})[0] if name == "Exp" else x
        attrs = {"T": graphs.AttrValue(type=tf.float32.as_datatype_enum)}
        (x,) = builder.copy("Identity", name, [x], attrs)
    builder.output(x, tf.float32)
    names = [node.name for node in builder.definition.node_def]
    assert len(set(names)) == len(names)
    assert "a0" not in names
    (result,) = call(builder, {}, (np.float32(0.0),))
    assert result == pytest.approx(np.e)


def test_what_is_kept_runs_though_nobody_uses_it() -> None:
    variable = tf.Variable(1.0)
    builder = made()
    handle = builder.argument(argument_of((), tf.resource), tf.resource)
    value = builder.constant(5.0, tf.float32)
    builder.op("AssignVariableOp", [handle, value], {"dtype": tf.float32})
    builder.keep(builder.definition.node_def[-1].name)
    builder.register()
    tf.function(lambda: graphs.call(builder.function, [variable.handle], [], stateful=True))()
    assert float(variable) == 5.0


def test_a_function_in_a_function_is_registered_with_it_and_goes_with_it() -> None:
    inner = made((lambda builder: builder.number(BATCH + 1, tf.int32), tf.int32))
    outer = FunctionBuilder("outer", table=SymbolTable())
    outer.include(inner)
    attrs = {
        "Tin": graphs.type_list([tf.int32]),
        "Tout": graphs.type_list([tf.int32]),
        "f": graphs.function_reference(inner.name),
    }
    number = outer.symbol("B")
    outer.output(outer.op("PartitionedCall", [number], attrs)[0], tf.int32)
    assert call(outer, {"B": 4})[0] == 5
    names = (outer.name, inner.name)
    del outer, inner
    gc.collect()
    for name in names:
        with pytest.raises((tf.errors.NotFoundError, tf.errors.InternalError), match="function"):
            tf.raw_ops.PartitionedCall(args=[tf.constant(4)], Tout=[tf.int32], f=name)
