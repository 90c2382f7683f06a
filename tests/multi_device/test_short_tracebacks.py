"""A wrong step ends with a short traceback: the person's lines, and TensorFlow's message."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener._tf_private.functions import is_error_of_step
from evener.run.script import without_frames

PACKAGE = str(Path(evener.__file__).parent)
TWO = ["cpu:0", "cpu:1"]


def fit() -> None:
    with evener.Strategy(devices=TWO).scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 8), "float32"), np.ones((8, 5), "float32"), verbose=0)


def step() -> None:
    weight = tf.Variable(tf.ones((3, 1)))
    evener.distribute(lambda x: tf.reduce_mean(x @ weight), devices=TWO)(tf.ones((8, 8)))


def rows_that_are_not_there() -> None:
    table = tf.Variable(tf.ones((3, 1)))
    step = evener.distribute(lambda x: tf.reduce_mean(tf.gather(table, x)), devices=TWO)
    step(tf.constant([1, 2, 5]))


def raised(wrong: Callable[[], None]) -> Exception:
    with pytest.raises(Exception) as caught:
        wrong()
    return caught.value


@pytest.mark.parametrize("wrong", [fit, step, rows_that_are_not_there])
def test_few_frames_are_evener_s(wrong: Callable[[], None]) -> None:
    error = raised(wrong)
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    # The message of TensorFlow is there, and no attempt of evener's before it.
    assert "must be equal" in str(error) or "is not in [0, 3)" in str(error), repr(error)
    assert __file__ in files
    assert sum(file.startswith(PACKAGE) for file in files) <= 1, files
    assert error.__cause__ is None
    # `evener run` shows none at all.
    left = [
        f.f_code.co_filename
        for f, _ in traceback.walk_tb(without_frames(error.__traceback__, error))
    ]
    assert __file__ in left and not any(file.startswith(PACKAGE) for file in left)


def test_all_frames_can_be_asked_for() -> None:
    keras.config.disable_traceback_filtering()
    tf.debugging.disable_traceback_filtering()
    try:
        error = raised(step)
    finally:
        keras.config.enable_traceback_filtering()
        tf.debugging.enable_traceback_filtering()
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert sum(file.startswith(PACKAGE) for file in files) > 3


def test_an_error_of_evener_keeps_its_frames() -> None:
    error = raised(lambda: evener.Strategy(devices="gpu0"))
    assert not is_error_of_step(error)
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert any(file.startswith(PACKAGE) for file in files)
