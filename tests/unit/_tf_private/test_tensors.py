"""Kinds of tensors, and reads of their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from evener._tf_private.tensors import HOST_READS, is_eager_tensor, symbolic_lengths, unwrapped


def noting(note: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """Return a wrap that takes note of the first argument and the result of each call."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            note(args[0], result)
            return result

        return noted

    return wrap


def test_eager_tensors_are_told_from_those_in_graphs() -> None:
    assert is_eager_tensor(tf.constant(1.0))
    with tf.Graph().as_default():
        assert not is_eager_tensor(tf.constant(1.0))


def test_the_length_of_a_tensor_in_a_graph_is_its_first_size() -> None:
    lengths: list[int] = []

    @tf.function(autograph=False)
    def of(tensor: tf.Tensor) -> tf.Tensor:
        with symbolic_lengths():
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
    assert type(unwrapped(module.rates)) is dict
    assert unwrapped(module) is module


def test_every_way_to_the_host_is_one_function(patches_undone: None) -> None:
    seen: list[Any] = []
    tensor = tf.constant(2.0)
    HOST_READS.apply(noting(lambda _, value: seen.append(value)))
    for read in (float, int, bool, str, repr, lambda value: value.numpy(), "{:.1f}".format):
        seen.clear()
        read(tensor)
        assert seen == [2.0], read
