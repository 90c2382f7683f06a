"""Sizes that are not known are noticed where a person's code asks for them, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from evener._tf_private.tracing import noticing_unknown_sizes

pytestmark = pytest.mark.usefixtures("logical_cpus")

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


@pytest.mark.parametrize("name", ASKING)
def test_it_is_noticed(name: str) -> None:
    assert asks(ASKING[name])


@pytest.mark.parametrize("name", NOT_ASKING)
def test_it_is_not_noticed(name: str) -> None:
    assert not asks(NOT_ASKING[name])


def test_nothing_stays_changed() -> None:
    before = tf.TensorShape.__getitem__
    with noticing_unknown_sizes(), noticing_unknown_sizes():
        assert tf.TensorShape.__getitem__ is not before
    assert tf.TensorShape.__getitem__ is before
