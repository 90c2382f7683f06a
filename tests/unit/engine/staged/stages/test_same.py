"""Sizes that are told before a graph runs, and tensors that stand for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from evener.engine.staged.stages.cut import CutFunction, in_order, operations_between
from evener.engine.staged.stages.same import Same
from evener.engine.staged.stages.sizes import GraphSizes, Sizes, Unknown

Function = Callable[[tf.Tensor, tf.Tensor], Any]


def norm(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Return a tensor whose gradient asks for many shapes."""
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    scaled = centred * tf.math.rsqrt(variance + 1.0) * w
    heads = tf.transpose(tf.reshape(scaled, [-1, 2, 3]), [0, 2, 1])
    return tf.reshape(tf.nn.softmax(heads), tf.shape(x)) + scaled


def stretched(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Return a tensor of sizes that cannot be told: the first of x may be 1, that of y not."""
    y = tf.concat([x, x], 0)
    return x[:1] * y + tf.einsum("ni,ij->nj", y, tf.linalg.diag(w)) + x[:1]


def gathered(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Return a tensor of rows that are chosen and sizes that are computed."""
    rows = tf.gather(w[:, tf.newaxis] * tf.ones([1, 6]), tf.cast(x[:, 0] > 0, tf.int32))
    count = tf.cast(tf.size(x) // tf.shape(x)[1], x.dtype)
    return tf.identity(x) * count + tf.stop_gradient(rows) + tf.identity(x) @ tf.linalg.diag(w)


def graph_of(function: Function) -> tuple[Any, list[tf.Tensor], list[tf.Tensor]]:
    """Trace a function of samples and a weight with its gradients."""
    made: dict[str, Any] = {}

    def body(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        y = function(x, w)
        made.update(inputs=[x, w], results=[y, *tf.gradients(y, [x, w])])
        return y

    specs = [tf.TensorSpec([None, 6]), tf.TensorSpec([6])]
    graph = tf.function(body, autograph=False).get_concrete_function(*specs).graph
    return graph, made["inputs"], made["results"]


def cut(results: list[tf.Tensor], inputs: list[tf.Tensor], same: Any) -> CutFunction:
    """Return a function of the inputs, with some tensors in place of others."""
    fed = {id(t) for t in inputs}
    operations, feeds = operations_between(results, lambda t: id(t) in fed, same=same)
    assert all(id(t) in fed for t in feeds)
    return CutFunction(in_order(list(operations), same), inputs, results, same=same)


def types_of(function: CutFunction) -> Counter[str]:
    """Return how many operations of each type a function has."""
    return Counter(op.type for op in function.graph.get_operations())


@pytest.mark.parametrize("function", [norm, stretched, gathered])
def test_what_stands_for_others_gives_the_same_bits(function: Function) -> None:
    graph, inputs, results = graph_of(function)
    plain = cut(results, inputs, lambda tensor: tensor)
    short = cut(results, inputs, Same(graph, lambda op: None).of)
    assert sum(types_of(short).values()) < 0.8 * sum(types_of(plain).values())
    generator = tf.random.Generator.from_seed(7)
    # A batch of one sample is where a size that is not known is 1.
    for size in (5, 1):
        given = [generator.normal([size, 6]), generator.normal([6])]
        for one, other in zip(plain(given), short(given), strict=True):
            tf.debugging.assert_equal(one, other)


def test_shapes_are_found_out_once() -> None:
    graph, inputs, results = graph_of(norm)
    plain = types_of(cut(results, inputs, lambda tensor: tensor))
    short = types_of(cut(results, inputs, Same(graph, lambda op: None).of))
    assert plain["Shape"] > 5
    assert short["Shape"] <= 3
    assert plain["BroadcastGradientArgs"] > 2
    assert not short["BroadcastGradientArgs"]
    assert short["Sum"] < plain["Sum"]


def test_operations_of_two_groups_do_not_stand_for_each_other() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2])
        first, second, third = tf.exp(x), tf.exp(x), tf.exp(x)
    apart = {second.op: "apart"}
    same = Same(graph, lambda op: apart.get(op, "together"))
    assert same.of(second) is second
    assert same.of(third) is first


def test_some_tensors_stay_what_they_are() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2])
        first, second, third = tf.exp(x), tf.exp(x), tf.identity(tf.identity(x))
    same = Same(graph, lambda op: None, {id(second)})
    assert same.of(second) is second
    assert same.of(first) is first
    assert same.of(third) is x


def test_what_draws_or_waits_stands_for_itself() -> None:
    with tf.Graph().as_default() as graph:
        drawn = [tf.raw_ops.RandomUniform(shape=[2], dtype=tf.float32, seed=1) for _ in range(2)]
        x = tf.compat.v1.placeholder(tf.float32, [2])
        with tf.control_dependencies(drawn):
            waiting = [tf.exp(x), tf.exp(x)]
    same = Same(graph, lambda op: None)
    assert [same.of(t) for t in (*drawn, *waiting)] == [*drawn, *waiting]


def sizes_of(make: Callable[[tf.Tensor], tf.Tensor]) -> tuple[Any, Sizes | None]:
    """Return the name of the number of samples, and the sizes of what is made of them."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 4, 6])
        made = make(x)
    sizes = GraphSizes()
    for op in in_order(graph.get_operations()):
        sizes.add(op)
    found = sizes.of(x)
    assert found is not None and isinstance(found[0], Unknown)
    return found[0].name, sizes.of(made)


@pytest.mark.parametrize(
    ("make", "factor", "rest"),
    [
        (lambda x: tf.nn.relu(x) + tf.ones([6]), 1, (4, 6)),
        (lambda x: tf.reshape(x, [-1, 6]), 4, (6,)),
        (lambda x: tf.reshape(tf.reshape(x, [-1, 3]), [-1, 4, 6]), 1, (4, 6)),
        (lambda x: tf.reduce_max(x, axis=[1], keepdims=True), 1, (1, 6)),
        (lambda x: tf.reduce_sum(x, axis=1), 1, (6,)),
        (lambda x: x @ tf.ones([6, 2]), 1, (4, 2)),
        (lambda x: tf.matmul(x, x, transpose_b=True), 1, (4, 4)),
        (lambda x: tf.einsum("nij,jk->nik", x, tf.ones([6, 5])), 1, (4, 5)),
        (lambda x: tf.fill(tf.stack([tf.shape(x)[0] * 3, 2]), 1.0), 3, (2,)),
        (lambda x: tf.zeros(tf.concat([tf.shape(x)[:1], [7]], 0)), 1, (7,)),
        (lambda x: tf.gather(tf.ones([9, 2]), tf.cast(x[..., 0], tf.int32)), None, (4, 2)),
        (lambda x: tf.concat([x, x], 0), None, (4, 6)),
    ],
)
def test_sizes(make: Any, factor: int | None, rest: Sizes) -> None:
    name, sizes = sizes_of(make)
    assert sizes is not None and sizes[1:] == rest
    if factor is None:
        # Nothing that could be taken for the number of samples.
        assert isinstance(sizes[0], Unknown) and sizes[0].name != name
    else:
        assert sizes[0] == Unknown(name, factor)


def test_the_order_of_axes_moves_sizes() -> None:
    name, sizes = sizes_of(lambda x: tf.transpose(x, [2, 0, 1]))
    assert sizes == (6, Unknown(name), 4)
