"""Kinds of tensors, and reads of their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from evener import _tf_private


def wrapped_by(replace: Callable[..., None], note: Callable[[Any, Any], None]) -> list[Any]:
    """Replace functions by ones that take note; return the originals, to be put back."""
    originals = []

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        originals.append(original)

        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            note(args[0], result)
            return result

        return noted

    replace(wrap)
    return originals


def test_eager_tensors_are_told_from_those_in_graphs() -> None:
    assert _tf_private.tensors.is_eager_tensor(tf.constant(1.0))
    with tf.Graph().as_default():
        assert not _tf_private.tensors.is_eager_tensor(tf.constant(1.0))


def test_the_length_of_a_tensor_in_a_graph_is_its_first_size() -> None:
    lengths: list[int] = []

    @tf.function(autograph=False)
    def of(tensor: tf.Tensor) -> tf.Tensor:
        with _tf_private.tensors.symbolic_lengths():
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
    assert type(_tf_private.tensors.unwrapped(module.rates)) is dict
    assert _tf_private.tensors.unwrapped(module) is module


def test_every_way_to_the_host_is_one_function() -> None:
    seen: list[Any] = []
    tensor = tf.constant(2.0)
    originals = wrapped_by(
        _tf_private.tensors.replace_host_reads, lambda one, value: seen.append(value)
    )
    try:
        for way in (float, int, bool, str, repr, lambda one: one.numpy(), "{:.1f}".format):
            seen.clear()
            way(tensor)
            assert seen == [2.0], way
    finally:
        back = iter(originals)
        _tf_private.tensors.replace_host_reads(lambda _: next(back))
    float(tensor)
    assert len(seen) == 1
