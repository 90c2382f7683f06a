"""Loops, conditions, lists, ragged and sparse tensors: functions for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import gradient_of


def loop(body, *start, times=3):
    """A loop whose arguments may change their shapes."""
    shapes = [tf.TensorShape([None] * len(x.shape)) for x in start]
    return tf.while_loop(
        lambda k, *rest: k < times,
        lambda k, *rest: (k + 1, *body(k, *rest)),
        (tf.constant(0), *start),
        shape_invariants=(tf.TensorShape([]), *shapes),
    )[1:]


def sums_of_rows(x):
    total = tf.zeros_like(x[:, 0])
    for k in tf.range(tf.shape(x)[1]):
        total += x[:, k]
    return total


def recurrent(x, w):
    state = tf.zeros([tf.shape(x)[0], 3])
    states = tf.TensorArray(tf.float32, tf.shape(x)[1])
    for k in tf.range(tf.shape(x)[1]):
        state = tf.tanh(x[:, k] @ w + state)
        states = states.write(k, state)
    return tf.transpose(states.stack(), [1, 0, 2])


def collatz(n):
    steps = tf.zeros_like(n)
    while tf.reduce_any(n > 1):
        n = tf.where(n > 1, n // 2, n)
        steps += 1
    return steps


def halving(x):
    def body(k, y):
        return (y[: (tf.shape(y)[0] + 1) // 2],)

    return loop(body, x)


def growing(x):
    return loop(lambda k, y: (tf.concat([y, y * 2.0], 0),), x)


def growing_by_one(x):
    return loop(lambda k, y: (tf.concat([y, y[:1]], 0),), x)


def chain(*xs):
    def body(k, *ys):
        return (tf.concat([ys[0], ys[0][:1]], 0), *ys[:-1])

    return loop(body, *xs, times=9)


def swapped(x, y):
    return loop(lambda k, a, b: (b, a), x, y)


def nested(x):
    def body(k, y):
        (z,) = loop(lambda j, z: (tf.concat([z, z[:1]], 0),), y, times=2)
        return (z[: tf.shape(x)[0]] + 1.0,)

    return loop(body, x)


def half_inside(x):
    """The same number is computed in the loop and, later, outside."""
    (y,) = loop(lambda k, y: (y + tf.reduce_sum(x[: tf.shape(x)[0] // 2]),), x)
    return y, x[: tf.shape(x)[0] // 2], tf.zeros([tf.shape(x)[0] // 2])


def half_in_branch(x):
    if tf.reduce_sum(x) > 0:
        y = tf.reduce_sum(x[: tf.shape(x)[0] // 2])
    else:
        y = tf.constant(1.0)
    return y, x[: tf.shape(x)[0] // 2]


def choose(x):
    if tf.reduce_sum(x) > 0:
        y = x[1:]
        z = tf.shape(x)[0]
    else:
        y = x
        z = tf.shape(x)[0] * 2
    return y, z, tf.zeros([z])


def choose_same(x):
    if tf.reduce_sum(x) > 0:
        y = x * 2.0
        n = tf.shape(x)[0]
    else:
        y = x + 1.0
        n = tf.shape(x)[0]
    return y, tf.zeros([n, 2])


def sizes_in_loop(x):
    n = tf.shape(x)[0]
    m = tf.constant(1)
    for _ in tf.range(3):
        n = n + 1
        m = n
    return tf.zeros([n]), tf.zeros([m])


def mapped(x):
    return tf.map_fn(lambda row: tf.cumsum(row) * 2.0, x)


def vectorized(x):
    return tf.vectorized_map(lambda row: tf.reduce_sum(row) + row, x)


def scanned(x):
    return tf.scan(lambda total, row: total + row, x), tf.foldl(lambda total, row: total + row, x)


def cases_of(x, n):
    return tf.switch_case(n[0] % 3, [lambda: x, lambda: x * 2.0, lambda: x + 1.0])


def cases_of_shapes(x, n):
    return tf.switch_case(n[0] % 2, [lambda: x, lambda: x[1:]])


@tf.function
def inner(x):
    return x[1:], tf.shape(x)[0] * 2


def calls(x):
    y, n = inner(x)
    return y, tf.zeros([n]), inner(y)


@tf.custom_gradient
def custom(x):
    return x * 2.0, lambda dy: dy * 3.0


LOOPS = {
    "sums_of_rows": ("B T", sums_of_rows),
    "gradient_of_loop": ("B T", gradient_of(sums_of_rows)),
    "recurrent": ("B T 2, 2 3", recurrent),
    "gradient_of_recurrent": ("B T 2, 2 3", gradient_of(recurrent)),
    "collatz": ("int<40 B", collatz),
    "halving": ("B 3", halving),
    "growing": ("B 3", growing),
    "gradient_of_growing": ("B 3", gradient_of(growing)),
    "gradient_of_growing_by_one": ("B 3", gradient_of(growing_by_one)),
    "gradient_of_halving": ("B 3", gradient_of(halving)),
    "chain": ("B 2" + 7 * ", B 2", chain),
    "swapped": ("B 3, T 3", swapped),
    "swapped_equal": ("B 3, B 3", swapped),
    "nested": ("B 3", nested),
    "half_inside": ("B 3", half_inside),
    "half_in_branch": ("B 3", half_in_branch),
    "sizes_in_loop": ("B", sizes_in_loop),
    "mapped": ("B T", mapped),
    "gradient_of_mapped": ("B T", gradient_of(mapped)),
    "vectorized": ("B T", vectorized),
    "scanned": ("B T", scanned),
}

CONDITIONS = {
    "choose": ("B 3", choose),
    "choose_same": ("B 3", choose_same),
    "gradient_of_choose": ("B 3", gradient_of(lambda x: choose_same(x)[0])),
    "cond": ("B 3", lambda x: tf.cond(tf.shape(x)[0] > 2, lambda: x[:2], lambda: x)),
    "gradient_of_cond": (
        "B 3",
        gradient_of(lambda x: tf.cond(tf.shape(x)[0] > 2, lambda: x[:2], lambda: x)),
    ),
    "cases_of": ("B 3", gradient_of(lambda x: cases_of(x, tf.shape(x)))),
    "cases_of_shapes": ("B 3, int 1", cases_of_shapes),
    "calls": ("B 3", calls),
    "custom_gradient": ("B 3", gradient_of(custom)),
    "recomputed": ("B T", gradient_of(tf.recompute_grad(lambda x: tf.tanh(x) * 2.0))),
}


def list_of_shapes(x):
    """Elements of a list may have different shapes."""
    array = tf.TensorArray(
        tf.float32, 2, infer_shape=False, element_shape=[None, 3], clear_after_read=False
    )
    array = array.write(0, x).write(1, x[:1])
    return array.read(0), array.read(1), array.concat()


def list_of_equal(x):
    array = tf.TensorArray(tf.float32, 2, element_shape=[None, 3], clear_after_read=False)
    array = array.write(0, x).write(1, x * 2.0)
    return array.read(0), array.read(1), array.stack(), array.gather([1]), array.size()


def growing_list(x):
    array = tf.TensorArray(
        tf.float32, 0, dynamic_size=True, infer_shape=False, element_shape=[None, 3]
    )
    y = x
    for k in tf.range(3):
        array = array.write(k, y)
        y = tf.concat([y, y[:1]], 0)
    return array.read(0), array.read(2), y


def pushed(x):
    handle = tf.raw_ops.EmptyTensorList(
        element_shape=-1, max_num_elements=-1, element_dtype=tf.float32
    )
    for pushed_item in (x, x[:1], x[1:]):
        handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=pushed_item)
    results = []
    for _ in range(3):
        handle, pushed_item = tf.raw_ops.TensorListPopBack(
            input_handle=handle, element_shape=-1, element_dtype=tf.float32
        )
        results.append(pushed_item)
    return results


def pushed_numbers(x):
    handle = tf.raw_ops.EmptyTensorList(
        element_shape=tf.constant([], tf.int32), max_num_elements=-1, element_dtype=tf.int32
    )
    for size in (tf.shape(x)[0], tf.shape(x)[0] * 2):
        handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=size)
    handle, size = tf.raw_ops.TensorListPopBack(
        input_handle=handle, element_shape=tf.constant([], tf.int32), element_dtype=tf.int32
    )
    handle, two = tf.raw_ops.TensorListPopBack(
        input_handle=handle, element_shape=tf.constant([], tf.int32), element_dtype=tf.int32
    )
    return tf.zeros([size]), tf.zeros([two])


def unset_items(x):
    handle = tf.raw_ops.TensorListReserve(element_shape=[2], num_elements=3, element_dtype=tf.int32)
    handle = tf.raw_ops.TensorListSetItem(input_handle=handle, index=0, item=tf.shape(x))
    return [
        tf.raw_ops.TensorListGetItem(
            input_handle=handle, index=k, element_shape=[2], element_dtype=tf.int32
        )
        for k in range(2)
    ]


LISTS = {
    "list_of_shapes": ("B 3", list_of_shapes),
    "list_of_equal": ("B 3", list_of_equal),
    "growing_list": ("B 3", growing_list),
    "pushed": ("B 3", pushed),
    "pushed_numbers": ("B 3", pushed_numbers),
    "unset_items": ("B 3", unset_items),
    "unstacked": ("B 4", lambda x: tf.TensorArray(tf.float32, 4).unstack(tf.transpose(x)).read(1)),
    "split_list": (
        "B 4",
        lambda x: (
            tf.TensorArray(tf.float32, 2, infer_shape=False).split(tf.transpose(x), [1, 3]).read(1)
        ),
    ),
}

RAGGED = {
    "from_lengths": (
        "100 2, int B",
        lambda x, n: tf.RaggedTensor.from_row_lengths(
            x[: tf.reduce_sum(n)], n, validate=False
        ).to_tensor(),
    ),
    "ragged_mean": (
        "B 3",
        lambda x: tf.reduce_mean(
            tf.RaggedTensor.from_uniform_row_length(tf.reshape(x, [-1]), 3, validate=False), 1
        ),
    ),
    "ragged_tensor": ("B 3", lambda x: tf.RaggedTensor.from_tensor(x).row_lengths()),
    "ragged_range": ("int B", lambda n: tf.ragged.range(n).to_tensor()),
    "sparse": ("B 3", lambda x: tf.sparse.to_dense(tf.sparse.from_dense(x))),
    "sparse_matmul": (
        "B 3, 3 2",
        lambda x, y: tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(x), y),
    ),
}
