"""Batches that cannot be trained on, and losses that are not finite."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from evener import EvenerError, EvenerWarning, Strategy

from .mistakes import TWO, assert_house_form, compiled_under, data, refused


@pytest.mark.parametrize("act", ["train_on_batch", "test_on_batch"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_batch_of_no_samples(act: str, first: bool) -> None:
    """A batch of 0 is refused, as the first call and after good ones."""
    model = compiled_under(Strategy(devices=TWO))
    x, y = data()
    if not first:
        model.train_on_batch(x, y)
    refused(model, lambda: getattr(model, act)(x[:0], y[:0]), "DATA-002", "0 samples")


def good_then_empty() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a good batch and then one without samples."""
    x, y = data()
    yield x, y
    yield x[:0], y[:0]


def test_a_generator_that_yields_no_samples() -> None:
    """The empty batch comes after a good one: one step is made, and no half one."""
    model = compiled_under(Strategy(devices=TWO))
    with pytest.raises(EvenerError) as caught:
        model.fit(good_then_empty(), steps_per_epoch=2, shuffle=False, verbose=0)
    assert_house_form(caught.value, "DATA-002", "0 samples")
    assert int(model.optimizer.iterations.numpy()) == 1
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_a_dataset_that_yields_no_samples() -> None:
    """The same from tf.data, where the graph alone sees the size."""
    spec = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    batches = tf.data.Dataset.from_generator(good_then_empty, output_signature=spec)
    model = compiled_under(Strategy(devices=TWO))
    with pytest.raises(EvenerError) as caught:
        model.fit(batches, steps_per_epoch=2, shuffle=False, verbose=0)
    assert_house_form(caught.value, "DATA-002", "0 samples")
    assert int(model.optimizer.iterations.numpy()) == 1
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@pytest.mark.parametrize(
    ("x", "named"),
    [
        (np.array([object()] * 4, dtype=object), "object"),
        (object(), "object"),
        ([[1.0, 2.0], "text"], "float"),
        (None, "no tensor"),
    ],
    ids=["array of objects", "object", "list with text", "nothing"],
)
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_data_that_is_no_tensor(x: object, named: str, first: bool) -> None:
    """What cannot be split over devices is refused, and its kind is named."""
    model = compiled_under(Strategy(devices=TWO))
    if not first:
        model.train_on_batch(*data())
    y = None if x is None else data(4)[1]
    error = refused(model, lambda: model.train_on_batch(x, y), "DATA-")
    assert named in str(error)


def test_rows_of_different_numbers() -> None:
    """More inputs than targets: no sample may be trained on the target of another."""
    model = compiled_under(Strategy(devices=TWO))
    before = model.get_weights()
    with pytest.raises(Exception, match=r"(?i)size|shape|samples|incompatible|cardinality"):
        model.train_on_batch(data(16)[0], data(12)[1])
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


class Breaks(layers.Layer):
    """Takes the root of its first input, which may be negative."""

    def call(self, x: object) -> object:
        """Return NaN for samples whose first number is negative."""
        return x * ops.sqrt(x[:, :1])


def breaking() -> keras.Model:
    """A model of which one layer can give NaN."""
    return keras.Sequential(
        [keras.Input((4,)), layers.Identity(), Breaks(name="breaks"), layers.Dense(1)]
    )


@pytest.mark.parametrize(("sample", "device"), [(2, "cpu:0"), (13, "cpu:1")])
def test_a_loss_that_is_nan(sample: int, device: str) -> None:
    """The warning names the replica whose sample it was and the first layer that gave NaN."""
    strategy = Strategy(devices=TWO, shares="even")
    model = compiled_under(strategy, breaking)
    x, y = data()
    x = np.abs(x) + 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.train_on_batch(x, y)
    x[sample, 0] = -1.0
    with pytest.warns(EvenerWarning) as caught:
        model.train_on_batch(x, y)
    (text,) = {str(warning.message) for warning in caught}
    assert text.startswith("[ENG-")
    assert "NaN" in text
    assert "breaks" in text
    assert device in text


def test_a_loss_that_is_nan_inside_fit() -> None:
    """One warning for a whole fit, and the training goes on."""
    model = compiled_under(Strategy(devices=TWO, shares="even"), breaking)
    x, y = data(48)
    x = np.abs(x) + 0.1
    x[40, 0] = -1.0
    with pytest.warns(EvenerWarning) as caught:
        model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    assert len([w for w in caught if issubclass(w.category, EvenerWarning)]) == 1
    assert "cpu:1" in str(caught[0].message)
    assert int(model.optimizer.iterations.numpy()) == 6


def test_inputs_that_are_nan() -> None:
    """NaN in the data is told apart from a layer that made it."""
    model = compiled_under(Strategy(devices=TWO, shares="even"))
    x, y = data()
    x[15, 2] = np.nan
    with pytest.warns(EvenerWarning, match="inputs") as caught:
        model.train_on_batch(x, y)
    assert "cpu:1" in str(caught[0].message)
