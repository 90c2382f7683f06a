"""Batches that cannot be trained on, and losses that are not finite."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from evener import EvenerError, EvenerWarning, Strategy

from .mistakes import (
    acts_as_plain_keras,
    assert_house_form,
    compiled_under,
    data,
    in_micro_batches,
    one_replica,
    plain_like,
    refused,
)

WHEN = pytest.mark.parametrize("first", [True, False], ids=["first", "later"])


@pytest.mark.parametrize("act", ["train_on_batch", "test_on_batch"])
@WHEN
def test_a_batch_of_no_samples(act: str, first: bool) -> None:
    """One device takes it, as the first batch and after good ones; so do several."""
    strategy = one_replica()
    model = compiled_under(strategy)
    reference = plain_like(model)
    x, y = data()
    if not first:
        acts_as_plain_keras(model, reference, lambda one: one.train_on_batch(x, y))
    acts_as_plain_keras(model, reference, lambda one: getattr(one, act)(x[:0], y[:0]))
    # Nothing is broken by it.
    acts_as_plain_keras(model, reference, lambda one: one.train_on_batch(x, y))
    assert strategy.report().num_operations > 0


@pytest.mark.parametrize("act", ["train_on_batch", "test_on_batch"])
@WHEN
def test_a_batch_of_no_samples_in_micro_batches(act: str, first: bool) -> None:
    """A batch of 0 is refused, as the first call and after good ones."""
    model = compiled_under(in_micro_batches())
    x, y = data()
    if not first:
        model.train_on_batch(x, y)
    refused(model, lambda: getattr(model, act)(x[:0], y[:0]), "DATA-002", "0 samples")


def good_then_empty() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a good batch and then one without samples."""
    x, y = data()
    yield x, y
    yield x[:0], y[:0]


def as_dataset() -> tf.data.Dataset:
    """Return the same from tf.data, where the graph alone sees the size."""
    spec = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    return tf.data.Dataset.from_generator(good_then_empty, output_signature=spec)


SOURCES = pytest.mark.parametrize(
    "make", [good_then_empty, as_dataset], ids=["generator", "dataset"]
)


def fit(model: keras.Model, batches: Iterable[object]) -> dict[str, list[float]]:
    """Train on two batches."""
    return model.fit(batches, steps_per_epoch=2, shuffle=False, verbose=0).history


@SOURCES
def test_a_source_that_yields_no_samples(make: Callable[[], Iterable[object]]) -> None:
    """The empty batch comes after a good one, and is a step as on one device."""
    model = compiled_under(one_replica())
    acts_as_plain_keras(model, plain_like(model), lambda one: fit(one, make()))
    assert int(model.optimizer.iterations.numpy()) == 2


@SOURCES
def test_a_source_that_yields_no_samples_in_micro_batches(
    make: Callable[[], Iterable[object]],
) -> None:
    """The empty batch comes after a good one: one step is made, and no half one."""
    model = compiled_under(in_micro_batches())
    with pytest.raises(EvenerError) as caught:
        fit(model, make())
    assert_house_form(caught.value, "DATA-002", "0 samples")
    assert int(model.optimizer.iterations.numpy()) == 1
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


# What it is, what Keras says of it, and what evener says where it splits batches itself.
NO_TENSORS = {
    "array of objects": (np.array([object()] * 4, dtype=object), "Invalid", "object"),
    "object": (object(), "object", "object"),
    "list with text": ([[1.0, 2.0], "text"], "'float'", "float"),
    "nothing": (None, "not optional", "no tensor"),
}


def train_on_no_tensor(model: keras.Model, x: object) -> None:
    """Train on a batch that cannot be one."""
    model.train_on_batch(x, None if x is None else data(4)[1])


@pytest.mark.parametrize("name", NO_TENSORS)
@WHEN
def test_data_that_is_no_tensor(name: str, first: bool) -> None:
    """Keras raises what it raises without a strategy."""
    x, named, _ = NO_TENSORS[name]
    raised = []
    ours = compiled_under(one_replica())
    for model in (ours, plain_like(ours)):
        if not first:
            model.train_on_batch(*data())
        before = model.get_weights()
        with pytest.raises(Exception, match=named) as caught:
            train_on_no_tensor(model, x)
        raised.append(caught.type)
        assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
        assert int(model.optimizer.iterations.numpy()) == (0 if first else 1)
    assert raised[0] is raised[1]


@pytest.mark.parametrize("name", NO_TENSORS)
@WHEN
def test_data_that_is_no_tensor_in_micro_batches(name: str, first: bool) -> None:
    """What cannot be split is refused, and its kind is named."""
    x, _, named = NO_TENSORS[name]
    model = compiled_under(in_micro_batches())
    if not first:
        model.train_on_batch(*data())
    error = refused(model, lambda: train_on_no_tensor(model, x), "DATA-")
    assert named in str(error)


@pytest.mark.parametrize("make", [one_replica, in_micro_batches])
def test_rows_of_different_numbers(make: Callable[[], Strategy]) -> None:
    """More inputs than targets: no sample may be trained on the target of another."""
    model = compiled_under(make())
    before = model.get_weights()
    with pytest.raises(Exception, match=r"(?i)size|shape|samples|incompatible|cardinality|equal"):
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


@pytest.mark.parametrize("sample", [2, 13])
def test_a_loss_that_is_nan(sample: int) -> None:
    """NaN of one device's samples is that of one device, and nothing is said."""
    model = compiled_under(one_replica(), breaking)
    reference = plain_like(model, breaking)
    x, y = data()
    x = np.abs(x) + 0.1
    acts_as_plain_keras(model, reference, lambda one: one.train_on_batch(x, y))
    x[sample, 0] = -1.0
    acts_as_plain_keras(model, reference, lambda one: one.train_on_batch(x, y))
    assert all(np.isnan(weight).all() for weight in model.get_weights())


@pytest.mark.parametrize(
    ("sample", "named"),
    [(2, "replica 0, micro-batch 0 (cpu:0)"), (13, "replica 1, micro-batch 1 (cpu:1)")],
)
def test_a_loss_that_is_nan_in_micro_batches(sample: int, named: str) -> None:
    """The warning names whose sample it was and the first layer that gave NaN."""
    model = compiled_under(in_micro_batches(), breaking)
    x, y = data()
    x = np.abs(x) + 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.train_on_batch(x, y)
    x[sample, 0] = -1.0
    with pytest.warns(EvenerWarning) as caught:
        model.train_on_batch(x, y)
    (text,) = {str(warning.message) for warning in caught}
    assert text.startswith("[ENG-030] ")
    assert "NaN" in text
    assert "breaks" in text
    assert named in text


def test_a_loss_that_is_nan_inside_fit_in_micro_batches() -> None:
    """One warning for a whole fit, and the training goes on."""
    model = compiled_under(in_micro_batches(), breaking)
    x, y = data(48)
    x = np.abs(x) + 0.1
    x[40, 0] = -1.0
    with pytest.warns(EvenerWarning) as caught:
        model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    assert len([w for w in caught if issubclass(w.category, EvenerWarning)]) == 1
    assert "cpu:1" in str(caught[0].message)
    assert int(model.optimizer.iterations.numpy()) == 6


def test_inputs_that_are_nan_in_micro_batches() -> None:
    """NaN in the data is told apart from a layer that made it."""
    model = compiled_under(in_micro_batches())
    x, y = data()
    x[15, 2] = np.nan
    with pytest.warns(EvenerWarning, match="inputs") as caught:
        model.train_on_batch(x, y)
    assert "cpu:1" in str(caught[0].message)
