"""Traced functions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from evener._tf_private.functions import (
    TRACED_FUNCTIONS,
    around_functions_run,
    body_of,
    function_graphs,
    is_compiled,
    leave_to_autograph,
)


def test_the_call_of_traced_functions_is_wrapped(patches_undone: None) -> None:
    seen = []

    def wrapper(original):
        def call(function, *args, **kwargs):
            seen.append(function)
            return original(function, *args, **kwargs)

        return call

    TRACED_FUNCTIONS.apply_by_name(
        lambda original, name: wrapper(original) if name == "__call__" else original
    )
    total = tf.function(tf.reduce_sum)
    assert float(total([1.0, 2.0])) == 3.0
    assert seen == [total]


def test_compiled_functions_are_known() -> None:
    assert is_compiled(tf.function(lambda x: x, jit_compile=True))
    assert not is_compiled(tf.function(lambda x: x))
    assert not is_compiled(lambda x: x)


def test_functions_run_inside_a_context(patches_undone: None) -> None:
    seen = []

    @contextlib.contextmanager
    def wrap(function):
        seen.append(f"begin {function.name.decode()}")
        yield
        seen.append("end")

    around_functions_run(wrap)
    inner = tf.function(lambda x: x + 1.0)
    outer = tf.function(lambda x: inner(x) * 2.0)
    assert float(outer(tf.constant(1.0))) == 4.0
    begin, end = seen
    assert begin.startswith("begin __inference_") and end == "end"


def test_functions_without_a_graph_are_left_out() -> None:
    """The loops of `tf.nn.ctc_loss` call such functions."""

    @tf.function
    def loss(logits: tf.Tensor) -> tf.Tensor:
        lengths = {"label_length": [2], "logit_length": [4]}
        return tf.nn.ctc_loss([[1, 2]], logits, blank_index=0, **lengths)

    concrete = loss.get_concrete_function(tf.zeros([4, 1, 3]))
    assert concrete.name.decode() in function_graphs(concrete)


@pytest.mark.parametrize("jit_compile", [True, None])
def test_the_body_of_what_xla_compiles_is_the_function_itself(jit_compile: bool | None) -> None:
    def body() -> tf.Tensor:
        return tf.constant(1.0)

    function = tf.function(body, jit_compile=jit_compile)
    assert body_of(function) is (function if jit_compile else body)
    assert body_of(body) is body


def test_traced_functions_are_made_and_called_through_known_functions(patches_undone: None) -> None:
    seen: list[str] = []

    def replace(kind: str) -> Callable[..., Any]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def noted(*args: Any, **kwargs: Any) -> Any:
                seen.append(kind)
                return original(*args, **kwargs)

            leave_to_autograph(noted)
            return noted

        return wrap

    kinds = {"__init__": "made", "__call__": "called"}
    TRACED_FUNCTIONS.apply_by_name(lambda original, name: replace(kinds[name])(original))
    inner = tf.function(lambda x: x + 1)
    assert seen == ["made"]
    outer = tf.function(lambda x: inner(x) if x > 0 else x)
    assert int(outer(tf.constant(1))) == 2
    assert seen == ["made", "made", "called", "called"]
