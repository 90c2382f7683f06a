"""Evaluating, predicting and going on from a checkpoint in custom loops."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
import tensorflow as tf

from .candidates import OneDevice, Place, make_candidate
from .compare import assert_equal
from .harness import FIVE, TWO, agree, start
from .loops import (
    CROSS_ENTROPY,
    Parts,
    batches,
    classifier,
    evaluate_loop,
    predict_loop,
    run_loop,
    train_step,
)
from .models import mlp, tabular
from .optimizers import OPTIMIZERS


@pytest.mark.long
def test_evaluation_and_prediction() -> None:
    """An evaluation in a loop, and predictions gathered in their order."""
    x, y = tabular(75)

    def experiment(place: Place) -> dict[str, object]:
        def metrics() -> tuple[keras.Metric, ...]:
            return (keras.metrics.SparseCategoricalAccuracy(),)

        with place.scope():
            parts = classifier(metrics=metrics)()
        log = run_loop(place, parts, batches(x, y))
        return {
            **log.results(),
            "evaluate": evaluate_loop(place, parts, batches(x, y, batch=20)),
            "predict": predict_loop(place, parts.model, x[:33]),
            "tiny": predict_loop(place, parts.model, x[:3], batch=2),
        }

    agree(experiment, TWO, FIVE)


@pytest.mark.long
def test_a_checkpoint_goes_on_on_other_devices(tmp_path: Path) -> None:
    """`tf.train.Checkpoint` in mid-training, restored on another number of devices."""
    x, y = tabular(75)

    def make() -> Parts:
        model, optimizer = mlp(), OPTIMIZERS["adam"]()
        optimizer.build(model.trainable_variables)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        step = train_step(model, optimizer, CROSS_ENTROPY, [accuracy])
        return Parts(model=model, optimizers=(optimizer,), step=step, metrics=(accuracy,))

    def train(places: list[Place], name: str) -> dict[str, object]:
        path, results = None, {}
        for number, place in enumerate(places):
            start()
            with place.scope():
                parts = make()
                checkpoint = tf.train.Checkpoint(model=parts.model, optimizer=parts.optimizers[0])
            if path:
                checkpoint.restore(path).assert_existing_objects_matched()
            log = run_loop(place, parts, batches(x, y), epochs=1)
            path = checkpoint.save(str(tmp_path / f"{name}-{number}"))
            results = {**parts.state(), **log.results()}
        return results

    single = [OneDevice() for _ in range(3)]
    several: list[Place] = [make_candidate(3, (5, 3, 1)), OneDevice(), make_candidate(2, (1, 4))]
    assert_equal(train(single, "one"), train(several, "several"), within=1e-5, where="3-1-2")
