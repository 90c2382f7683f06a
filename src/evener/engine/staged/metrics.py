"""Which metrics a replica can count by itself, and which need the whole batch.

Keras's own metrics are sums over samples: each replica counts its share from zero, and the
counts are added. A metric that a person wrote may be anything, so it sees the outputs of
the whole batch, gathered on one device, as it would on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from evener import _tf_private

_KERAS_METRICS = "keras.src.metrics."
_KERAS = "keras.src."


def is_additive(metric: keras.metrics.Metric) -> bool:
    """Return whether a metric's state is a sum over samples, whatever their order."""
    if not type(metric).__module__.startswith(_KERAS_METRICS):
        return False
    if isinstance(metric, keras.metrics.MeanMetricWrapper):
        return getattr(metric._fn, "__module__", "").startswith(_KERAS)
    return True


def compiled_metrics_are_additive(model: keras.Model) -> bool:
    """Return whether all metrics given to ``compile`` can be counted replica by replica."""
    if type(model).compute_metrics is not keras.Model.compute_metrics:
        return False
    compiled = _tf_private.compiled_metrics(model)
    return compiled is None or all(is_additive(metric) for metric in compiled.metrics)


def compiled_metric_variables(model: keras.Model) -> list[Any]:
    """Return the state of the metrics given to ``compile``."""
    compiled = _tf_private.compiled_metrics(model)
    return [] if compiled is None else list(compiled.variables)


def layer_metrics(model: keras.Model) -> Sequence[keras.metrics.Metric]:
    """Return the metrics that layers update while they are called."""
    own = {id(metric) for metric in model.metrics if _is_model_metric(model, metric)}
    return [metric for metric in model.metrics if id(metric) not in own]


def _is_model_metric(model: keras.Model, metric: keras.metrics.Metric) -> bool:
    compiled_loss = _tf_private.compiled_loss(model)
    trackers = [] if compiled_loss is None else compiled_loss.metrics
    known = [_tf_private.loss_tracker(model), _tf_private.compiled_metrics(model), *trackers]
    return any(metric is other for other in known)
