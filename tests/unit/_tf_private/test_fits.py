"""Data of Keras's `predict`: who sees a batch before the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener._tf_private import fits

Asked = Callable[[], list[bool]]


@pytest.fixture
def asked() -> Iterator[Asked]:
    """Whether nothing but steps reads the batches, for each iterator that Keras has made."""
    answers: dict[int, bool] = {}
    kept: list[Any] = []

    def iterable_of(epochs: Any, dataset: Any, *, only_steps_read: bool) -> Any:
        kept.append(epochs)
        answers[id(epochs)] = only_steps_read
        return dataset

    fits.iterate_by(iterable_of)
    yield lambda: [*answers.values()]
    fits.iterate_by(fits._dataset_itself)
    for patch in (fits._EPOCHS,):
        patch.undo()


class LooksAtBatches(keras.Sequential):
    """A model whose function of `predict` is its own."""

    def make_predict_function(self, force: bool = False) -> Any:
        super().make_predict_function(force)
        traced, self.predict_function = self.predict_function, lambda data: traced(data)


def model_of(kind: type[keras.Sequential] = keras.Sequential, **compiled: Any) -> Any:
    model = kind([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", **compiled)
    return model


def data() -> Any:
    return tf.data.Dataset.from_tensors(np.ones((4, 3), np.float32))


def with_a_function_of_the_program() -> Any:
    model = model_of()
    model.predict_function = lambda data: model(data[0])
    return model


@pytest.mark.parametrize(
    ("make", "only_steps_read"),
    [
        (model_of, True),
        (lambda: model_of(run_eagerly=True), False),
        (lambda: model_of(steps_per_execution=2), False),
        (lambda: model_of(LooksAtBatches), False),
        (with_a_function_of_the_program, False),
    ],
)
def test_traced_steps_of_keras_alone_are_given_the_batches_of_predict(
    asked: Asked, make: Any, only_steps_read: bool
) -> None:
    make().predict(data(), verbose=0)
    assert asked() == [only_steps_read]


def test_functions_that_run_eagerly(asked: Asked) -> None:
    tf.config.run_functions_eagerly(True)
    try:
        model_of().predict(data(), verbose=0)
    finally:
        tf.config.run_functions_eagerly(False)
    assert asked() == [False]


def test_an_evaluation_within_predict_takes_its_batches_itself(asked: Asked) -> None:
    model, other = model_of(), model_of()

    class Evaluates(keras.callbacks.Callback):
        def on_predict_begin(self, logs: Any = None) -> None:
            other.evaluate(np.ones((4, 3)), np.ones((4, 2)), verbose=0)

    model.predict(data(), verbose=0, callbacks=[Evaluates()])
    assert asked() == [False, True]


def test_a_predict_that_fails_leaves_no_mark(asked: Asked) -> None:
    with pytest.raises(TypeError):
        model_of().predict(data(), no_such_argument=1)
    model_of().evaluate(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    assert asked() == [False]
