"""Batches that cannot be trained on, and losses that are not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from evener import Strategy

from .mistakes import (
    acts_as_plain_keras,
    compiled_under,
    data,
    in_micro_batches,
    one_replica,
    plain_like,
)

WHEN = pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
MAKE = pytest.mark.parametrize("make", [one_replica, in_micro_batches])


@pytest.mark.covering(2)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("act", ["train_on_batch", "test_on_batch"])
@WHEN
@MAKE
def test_a_batch_of_no_samples(make: Callable[[], Strategy], act: str, first: bool) -> None:
    """One device takes it, as the first batch and after good ones; so do several."""
    strategy = make()
    model = compiled_under(strategy)
    reference = plain_like(model)
    x, y = data()
    if not first:
        acts_as_plain_keras(model, reference, lambda trained: trained.train_on_batch(x, y))
    acts_as_plain_keras(model, reference, lambda trained: getattr(trained, act)(x[:0], y[:0]))
    # Nothing is broken by it.
    acts_as_plain_keras(model, reference, lambda trained: trained.train_on_batch(x, y))
    assert strategy.report().num_operations > 0


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
    "source", [good_then_empty, as_dataset], ids=["generator", "dataset"]
)


def fit(model: keras.Model, batches: Iterable[object]) -> dict[str, list[float]]:
    """Train on two batches."""
    return model.fit(batches, steps_per_epoch=2, shuffle=False, verbose=0).history


@pytest.mark.covering(1)
@pytest.mark.sampled(12)
@SOURCES
@MAKE
def test_a_source_that_yields_no_samples(
    make: Callable[[], Strategy], source: Callable[[], Iterable[object]]
) -> None:
    """The empty batch comes after a good one, and is a step as on one device."""
    model = compiled_under(make())
    acts_as_plain_keras(model, plain_like(model), lambda trained: fit(trained, source()))
    assert int(model.optimizer.iterations.numpy()) == 2


# What it is, and what Keras says of it.
NO_TENSORS = {
    "array of objects": (np.array([object()] * 4, dtype=object), "Invalid"),
    "object": (object(), "object"),
    "list with text": ([[1.0, 2.0], "text"], "'float'"),
    "nothing": (None, "not optional"),
}


def train_on_no_tensor(model: keras.Model, x: object) -> None:
    """Train on a batch that cannot be one."""
    model.train_on_batch(x, None if x is None else data(4)[1])


@pytest.mark.covering(2)
@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", NO_TENSORS)
@WHEN
@MAKE
def test_data_that_is_no_tensor(make: Callable[[], Strategy], name: str, first: bool) -> None:
    """Keras raises what it raises without a strategy."""
    x, named = NO_TENSORS[name]
    raised = []
    ours = compiled_under(make())
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


@MAKE
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
        return x * ops.sqrt(x[:, :1])


def breaking() -> keras.Model:
    """A model of which one layer can give NaN."""
    return keras.Sequential(
        [keras.Input((4,)), layers.Identity(), Breaks(name="breaks"), layers.Dense(1)]
    )


@pytest.mark.covering(1)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("sample", [2, 13])
@MAKE
def test_a_loss_that_is_nan(make: Callable[[], Strategy], sample: int) -> None:
    """NaN of one device's samples is that of one device, and nothing is said."""
    model = compiled_under(make(), breaking)
    reference = plain_like(model, breaking)
    x, y = data()
    x = np.abs(x) + 0.1
    acts_as_plain_keras(model, reference, lambda trained: trained.train_on_batch(x, y))
    x[sample, 0] = -1.0
    acts_as_plain_keras(model, reference, lambda trained: trained.train_on_batch(x, y))
    assert all(np.isnan(weight).all() for weight in model.get_weights())
