from __future__ import annotations

import inspect

import tensorflow as tf

from evener.run.replace import replace_with


def test_what_stands_in_for_a_function_has_its_name_and_signature() -> None:
    def original(self: object, *, name: str | None = None) -> None:
        """Do it."""

    def listed(_: object, *args: object, **kwargs: object) -> tuple[object, ...]:
        return (*args, *kwargs.items())

    replacement = replace_with(listed)(original)
    # What Keras asks of every __init__ before it is called.
    assert inspect.getfullargspec(replacement) == inspect.getfullargspec(original)
    assert (replacement.__name__, replacement.__doc__) == ("original", "Do it.")
    assert replacement(1, name="a") == (1, ("name", "a"))


def test_autograph_converts_what_the_original_calls_as_without_the_replacement() -> None:
    def original(x: tf.Tensor) -> tf.Tensor:
        # As a custom gradient or an update of an optimizer: TensorFlow converts what it maps.
        return tf.map_fn(lambda row: row if row > 0 else -row, x)

    replacement = replace_with(lambda function, x: function(x))(original)
    step = tf.function(lambda x: replacement(x))
    assert step(tf.constant([-1.0, 2.0])).numpy().tolist() == [1.0, 2.0]
