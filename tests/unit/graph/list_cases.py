"""Lists of tensors, ragged and sparse tensors: functions for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import B, case, f32, i32


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


LISTS = [
    case("list_of_shapes", list_of_shapes, f32(B, 3)),
    case("list_of_equal", list_of_equal, f32(B, 3)),
    case("growing_list", growing_list, f32(B, 3)),
    case("pushed", pushed, f32(B, 3)),
    case("pushed_numbers", pushed_numbers, f32(B, 3)),
    case("unset_items", unset_items, f32(B, 3)),
    case(
        "unstacked",
        lambda x: tf.TensorArray(tf.float32, 4).unstack(tf.transpose(x)).read(1),
        f32(B, 4),
    ),
    case(
        "split_list",
        lambda x: (
            tf.TensorArray(tf.float32, 2, infer_shape=False).split(tf.transpose(x), [1, 3]).read(1)
        ),
        f32(B, 4),
    ),
]

RAGGED = [
    case(
        "from_lengths",
        lambda x, n: tf.RaggedTensor.from_row_lengths(
            x[: tf.reduce_sum(n)], n, validate=False
        ).to_tensor(),
        f32(100, 2),
        i32(B),
    ),
    case(
        "ragged_mean",
        lambda x: tf.reduce_mean(
            tf.RaggedTensor.from_uniform_row_length(tf.reshape(x, [-1]), 3, validate=False), 1
        ),
        f32(B, 3),
    ),
    case("ragged_tensor", lambda x: tf.RaggedTensor.from_tensor(x).row_lengths(), f32(B, 3)),
    case("ragged_range", lambda n: tf.ragged.range(n).to_tensor(), i32(B)),
    case("sparse", lambda x: tf.sparse.to_dense(tf.sparse.from_dense(x)), f32(B, 3)),
    case(
        "sparse_matmul",
        lambda x, y: tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(x), y),
        f32(B, 3),
        f32(3, 2),
    ),
]
