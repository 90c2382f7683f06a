"""Calls of ``keras.losses`` and ``keras.metrics``."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np

from multi_device.public_names.recipe import B, Function, Recipe, Table, call, layer
from unit.graph.ops.op_case import Arg, bools, f32, i32, ints

losses, metrics = keras.losses, keras.metrics


def share(rng: Any, shape: tuple[int, ...], batch: int) -> Any:
    return rng.uniform(0.1, 0.9, shape)


PREDICTED = f32(B, 4, values=share)
TRUE = f32(B, 4, values=share)
ONE_HOT = Arg((B, 4), lambda r, s, b: np.eye(4)[r.integers(0, 4, s[0])])
LABEL = i32(B, values=ints(0, 4))
YES = Arg((B, 4), bools)
PAIR = (TRUE, PREDICTED)

KINDS: dict[str, tuple[Arg, Arg]] = {
    **dict.fromkeys(
        """
        CosineSimilarity Huber KLDivergence LogCosh MeanAbsoluteError MeanAbsolutePercentageError
        MeanSquaredError MeanSquaredLogarithmicError Poisson cosine_similarity huber kl_divergence
        log_cosh mean_absolute_error mean_absolute_percentage_error mean_squared_error
        mean_squared_logarithmic_error poisson RootMeanSquaredError LogCoshError
        ConcordanceCorrelation PearsonCorrelation R2Score concordance_correlation
        pearson_correlation
        """.split(),
        PAIR,
    ),
    **dict.fromkeys(
        """
        BinaryCrossentropy BinaryFocalCrossentropy Dice Hinge SquaredHinge Tversky AUC
        binary_crossentropy binary_focal_crossentropy dice hinge squared_hinge tversky
        BinaryAccuracy binary_accuracy FalseNegatives FalsePositives TrueNegatives TruePositives
        Precision Recall Accuracy
        """.split(),
        (YES, PREDICTED),
    ),
    **dict.fromkeys(
        """
        CategoricalCrossentropy CategoricalFocalCrossentropy CategoricalHinge
        categorical_crossentropy categorical_focal_crossentropy categorical_hinge
        CategoricalAccuracy categorical_accuracy F1Score
        """.split(),
        (ONE_HOT, PREDICTED),
    ),
    **dict.fromkeys(
        """
        SparseCategoricalCrossentropy sparse_categorical_crossentropy SparseCategoricalAccuracy
        sparse_categorical_accuracy
        """.split(),
        (LABEL, PREDICTED),
    ),
}
# Labels are not trained.
PREDICTIONS = 1
CTC = (i32(B, 2, values=ints(1, 4)), f32(B, 6, 4))


def updated(make: Function) -> Function:
    """Return a function that makes a metric, and one of its batches."""

    def made() -> Function:
        metric = make()

        def function(*args: Any) -> Any:
            metric.reset_state()
            metric.update_state(*args)
            return metric.result()

        return function

    return made


def metric(make: Function, *args: Arg) -> Recipe:
    return layer(updated(make), *args, gradient=False)


def of(module: Any, name: str) -> Recipe:
    """Return the recipe of a class of losses, a class of metrics, or a function."""
    made, args = getattr(module, name), KINDS[name]
    if not isinstance(made, type):
        return call(made, *args, by=PREDICTIONS)
    return metric(made, *args) if module is metrics else layer(made, *args, by=PREDICTIONS)


LOSSES: Table = {
    **{name: of(losses, name) for name in KINDS if hasattr(losses, name)},
    "CTC": layer(losses.CTC, *CTC, tolerance=1e-4),
    "ctc": call(losses.ctc, *CTC, tolerance=1e-4),
    "CategoricalGeneralizedCrossEntropy": layer(
        losses.CategoricalGeneralizedCrossEntropy, LABEL, PREDICTED
    ),
    "categorical_generalized_cross_entropy": call(
        lambda y, p: losses.categorical_generalized_cross_entropy(y, p, 0.5), LABEL, PREDICTED
    ),
    "Circle": layer(losses.Circle, LABEL, PREDICTED),
    "circle": call(losses.circle, LABEL, PREDICTED),
}
METRICS: Table = {
    **{name: of(metrics, name) for name in KINDS if hasattr(metrics, name)},
    "BinaryIoU": metric(lambda: metrics.BinaryIoU([0, 1], 0.5), YES, PREDICTED),
    "FBetaScore": metric(lambda: metrics.FBetaScore(beta=2.0), ONE_HOT, PREDICTED),
    "IoU": metric(lambda: metrics.IoU(4, [0, 2]), LABEL, LABEL),
    "MeanIoU": metric(lambda: metrics.MeanIoU(4), LABEL, LABEL),
    "OneHotIoU": metric(lambda: metrics.OneHotIoU(4, [0, 2]), ONE_HOT, PREDICTED),
    "OneHotMeanIoU": metric(lambda: metrics.OneHotMeanIoU(4), ONE_HOT, PREDICTED),
    "Mean": metric(metrics.Mean, PREDICTED),
    "Sum": metric(metrics.Sum, PREDICTED),
    "MeanMetricWrapper": metric(
        lambda: metrics.MeanMetricWrapper(losses.mean_squared_error), *PAIR
    ),
    **{
        name: metric(functools.partial(getattr(metrics, name), 0.5), YES, PREDICTED)
        for name in """
        PrecisionAtRecall RecallAtPrecision SensitivityAtSpecificity SpecificityAtSensitivity
        """.split()
    },
    "SparseTopKCategoricalAccuracy": metric(
        lambda: metrics.SparseTopKCategoricalAccuracy(2), LABEL, PREDICTED
    ),
    "TopKCategoricalAccuracy": metric(
        lambda: metrics.TopKCategoricalAccuracy(2), ONE_HOT, PREDICTED
    ),
    "sparse_top_k_categorical_accuracy": call(
        lambda y, p: metrics.sparse_top_k_categorical_accuracy(y, p, 2), LABEL, PREDICTED
    ),
    "top_k_categorical_accuracy": call(
        lambda y, p: metrics.top_k_categorical_accuracy(y, p, 2), ONE_HOT, PREDICTED
    ),
}
_CONFIG = "creates or serializes an object; it computes nothing"
NOT_CALLED = dict.fromkeys("deserialize get serialize".split(), _CONFIG) | dict.fromkeys(
    "Loss Metric".split(), "an abstract class"
)
