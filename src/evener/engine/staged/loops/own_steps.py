"""Models with a ``train_step``, ``test_step`` or ``predict_step`` of their own, under ``fit``.

The engine splits Keras's own steps; a person's step is called once per replica, as in a
custom loop, and what it returns is put together:

    what it returns                      what is logged
    the result of one of its metrics     the result over all replicas
    a loss, scaled as Keras scales it    the sum of the parts
    any other number                     the mean, weighed by samples
    outputs of ``predict_step``          joined, in the order of the batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine.staged.execution import without_optionals
from evener.engine.staged.loops import data as parts
from evener.engine.staged.loops.run import is_number
from evener.engine.staged.loops.scaled import Kind, kind_of
from evener.engine.staged.strategy import StagedStrategy

_STEPS = {"train": "train_step", "test": "test_step", "predict": "predict_step"}


def has_own(model: keras.Model, kind: str) -> bool:
    """Return whether a model brings its own step of a kind: train, test or predict."""
    name = _STEPS[kind]
    return getattr(type(model), name) is not getattr(keras.Model, name)


def function_of(model: keras.Model, strategy: StagedStrategy, kind: str) -> Callable[[Any], Any]:
    """Return what Keras calls once per execution, around a step of the model's own."""

    def step(batch: Any) -> Any:
        return _take(model, strategy, kind, batch)

    if kind == "predict":
        return _predicting(model, step)
    return _tf_private.step_loop(model, step)


def _predicting(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
    def predict(batches: list[Any]) -> Any:
        outputs = [step(batch) for batch in batches]
        if len(outputs) == 1:
            return outputs[0]
        return keras.tree.map_structure(lambda *leaves: tf.concat(leaves, 0), *outputs)

    if model.run_eagerly:
        return predict
    return tf.function(predict, reduce_retracing=True, autograph=False)


def _take(model: keras.Model, strategy: StagedStrategy, kind: str, batch: Any) -> Any:
    own = getattr(model, _STEPS[kind])
    kinds: list[Any] = []

    @tf.autograph.experimental.do_not_convert
    def step(data: Any) -> Any:
        results = own(data)
        # Here, because eagerly only a replica itself knows how its numbers were made.
        count = strategy.num_replicas_in_sync
        kinds.append(keras.tree.map_structure(lambda leaf: _kind(leaf, count), results))
        return results

    cut = parts.cut_by_shares(without_optionals(batch), strategy)
    results = strategy.run(step, args=(_tf_private.regroup_or_one(cut),))
    if strategy.num_replicas_in_sync == 1:
        return results
    if kind == "predict":
        return keras.tree.map_structure(lambda leaf: _joined(strategy, leaf), results)
    return _logs(model, strategy, results, kinds[0])


def _kind(leaf: Any, num_replicas: int) -> Kind:
    return kind_of(leaf, num_replicas) if is_number(leaf) else "unknown"


def _logs(model: keras.Model, strategy: StagedStrategy, results: Any, kinds: Any) -> Any:
    def put_together(leaf: Any, kind: Kind) -> Any:
        return _put_together(strategy, leaf, kind)

    if not isinstance(results, dict):
        return keras.tree.map_structure(put_together, results, kinds)
    known = _metric_results(model, strategy)
    return {
        name: known[name]
        if name in known
        else keras.tree.map_structure(put_together, value, kinds[name])
        for name, value in results.items()
    }


def _metric_results(model: keras.Model, strategy: StagedStrategy) -> dict[str, Any]:
    """Return the results of the metrics that the replicas have updated, by what they log."""
    known: dict[str, Any] = {}
    for metric in model.metrics:
        if any(strategy.loop_state.is_written(v.value) for v in metric.variables):
            result = metric.result()
            known[metric.name] = result
            if isinstance(result, dict):
                known.update(result)
    return known


def _put_together(strategy: StagedStrategy, leaf: Any, kind: Kind) -> Any:
    if not _tf_private.is_per_replica(leaf):
        return leaf
    if _tf_private.local_values(leaf)[0].shape.rank:
        return _joined(strategy, leaf)
    return strategy.reduce("SUM" if kind == "part" else "MEAN", leaf, axis=None)


def _joined(strategy: StagedStrategy, leaf: Any) -> Any:
    return strategy.gather(leaf, axis=0) if _tf_private.is_per_replica(leaf) else leaf
