"""Parts of a loss over shares add up to what Keras computes over the whole batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import _tf_private
from evener.engine.staged import added, totals
from evener.engine.staged.loss import compiled_parts, is_separable
from evener.engine.staged.metrics import is_additive
from evener.errors import EvenerWarning

RNG = np.random.default_rng(0)
BATCH = 7


def make(loss: object, shape: tuple[int, ...] = (3,)) -> keras.Model:
    model = keras.Sequential([keras.Input(shape), layers.Activation("linear")])
    model.compile("sgd", loss)
    return model


def over_shares(
    model: keras.Model, y: np.ndarray, p: np.ndarray, w: np.ndarray | None, m: np.ndarray | None
) -> float:
    cuts = [0, 2, 2, 6, BATCH]
    numerators, computed, kinds = [], [], []
    for begin, end in itertools.pairwise(cuts):
        # A replica without samples is given one that does not count.
        rows = slice(begin, end) if end > begin else slice(begin, begin + 1)
        outputs = tf.constant(p[rows])
        if m is not None:
            _tf_private.set_keras_mask(outputs, tf.constant(m[rows]))
        parts = compiled_parts(
            model, tf.constant(y[rows]), outputs, None if w is None else tf.constant(w[rows]),
            num_samples=tf.constant(float(end - begin)),
        )  # fmt: skip
        numerators.append([part.numerator for part in parts])
        computed.append([part.computed for part in parts if part.computed is not None])
        kinds = [part.denominator for part in parts]
    divisors = totals.denominators(kinds, computed, tf.constant(BATCH))
    return float(totals.values(numerators, divisors)[0])


@pytest.mark.parametrize("mask", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize("weights", [None, (BATCH,), (BATCH, 4)], ids=["plain", "1d", "2d"])
@pytest.mark.parametrize(
    "reduction", ["sum", "sum_over_batch_size", "mean", "mean_with_sample_weight"]
)
def test_shares_add_up(reduction: str, weights: tuple[int, ...] | None, mask: bool) -> None:
    model = make(keras.losses.MeanSquaredError(reduction=reduction), (4, 3))
    y, p = (RNG.normal(size=(BATCH, 4, 3)).astype("f4") for _ in range(2))
    w = None if weights is None else RNG.random(weights).astype("f4")
    if w is not None and w.ndim == 1:
        w = w[:, None]  # Keras itself refuses a rank that differs by two.
    m = RNG.random((BATCH, 4)) > 0.4 if mask else None
    outputs = tf.constant(p)
    if m is not None:
        _tf_private.set_keras_mask(outputs, tf.constant(m))
    whole = _tf_private.compiled_loss(model)(
        tf.constant(y), outputs, None if w is None else tf.constant(w)
    )
    assert over_shares(model, y, p, w, m) == pytest.approx(float(whole), rel=1e-6)


def test_a_batch_that_is_all_masked_has_no_loss() -> None:
    model = make("mse", (4, 3))
    y, p = np.ones((BATCH, 4, 3), "f4"), np.zeros((BATCH, 4, 3), "f4")
    _tf_private.compiled_loss(model)(tf.constant(y), tf.constant(p))
    assert over_shares(model, y, p, None, np.zeros((BATCH, 4), bool)) == 0.0


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (keras.losses.MeanSquaredError(), True),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=0), True),
        (keras.losses.MeanSquaredError(reduction=None), False),
        (keras.losses.CosineSimilarity(axis=0), False),
        (keras.losses.Dice(), False),
        (keras.losses.Circle(), False),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_only_losses_that_treat_samples_one_by_one_are_separable(
    loss: keras.losses.Loss, expected: bool
) -> None:
    assert is_separable(loss) is expected


def test_a_loss_that_a_person_wrote_is_not_separable() -> None:
    class Own(keras.losses.Loss):
        def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
            return y_pred - y_true

    assert not is_separable(Own())


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (keras.metrics.SparseCategoricalAccuracy, True),
        (keras.metrics.AUC, True),
        (lambda: keras.metrics.MeanMetricWrapper(lambda y, p: p, name="own"), False),
        (type("Own", (keras.metrics.Mean,), {}), False),
    ],
    ids=["accuracy", "auc", "own function", "own class"],
)
def test_only_keras_own_metrics_are_counted_by_share(
    metric: Callable[[], keras.metrics.Metric], expected: bool
) -> None:
    # Made here: a metric's variables would start TensorFlow before its devices are made.
    assert is_additive(metric()) is expected


def test_means_and_sums_are_told_apart() -> None:
    kinds = added.kinds_from_probe(
        [2.0, 2.0, 0.0, 4.0], [3.0, 3.0, 0.0, 4.0], [2.5, 5.0, 0.0, 4.0], num_replicas=2
    )
    assert kinds == ["mean", "sum", None, "mean"]


def test_what_cannot_be_told_is_taken_for_a_mean_and_said() -> None:
    with pytest.warns(EvenerWarning, match=r"ENG-021.*\[2\]"):
        assert added.or_mean(["sum", None], num_replicas=2) == ["sum", "mean"]
    assert added.or_mean([None], num_replicas=1) == ["mean"]


def test_what_is_neither_gets_a_warning() -> None:
    with pytest.warns(EvenerWarning, match=r"ENG-020.*number 1"):
        added.kinds_from_probe([2.0], [3.0], [3.5], num_replicas=2)
    assert added.kinds_from_probe([2.0], [3.0], [3.5], num_replicas=1) == ["mean"]
