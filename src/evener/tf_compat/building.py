"""Building a Keras model, its metrics and its optimizer from the shapes of a batch.

Tests: ``tests/unit/tf_compat/test_building.py``.
"""

from __future__ import annotations

import contextlib
from typing import Any


def build_from_specs(model: Any, batch: Any) -> None:
    """Make all variables of a compiled model, as Keras does before it trains under a strategy.

    What fails here fails in the step too, which says so.

    Why: a step that makes variables while it is traced is traced twice. There is no public way to
    build the metrics.
    If it changes: tracing takes twice as long.

    Args:
        model: The model, compiled.
        batch: A nest of `keras.KerasTensor`, as the model's ``train_step`` is given it.
    """
    with contextlib.suppress(Exception):
        model._symbolic_build(data_batch=batch)
    with contextlib.suppress(Exception):
        if model.built and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
