"""Entries that `Progress` adds to Keras's logs, for callbacks that write them down."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from rich.console import Console

import evener
from evener.report import Progress

pytestmark = pytest.mark.usefixtures("logical_cpus")


def fitted(*callbacks: Any, **choices: Any) -> dict[str, list[float]]:
    strategy = evener.Strategy(devices=["cpu:1", "cpu:2"], **choices)
    with strategy.scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse")
    x, y = np.ones((64, 5)), np.ones((64, 3))
    options: dict[str, Any] = {"batch_size": 8, "epochs": 2, "verbose": 0}
    return model.fit(x, y, validation_data=(x, y), callbacks=list(callbacks), **options).history


def progress(**choices: Any) -> Progress:
    return Progress(console=Console(file=io.StringIO()), **choices)


def test_later_callbacks_and_the_history_see_shares_and_busy_seconds(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    history = fitted(progress(), keras.callbacks.CSVLogger(str(file)), shares=[3, 1])
    assert history["cpu:1/share"] == [0.75, 0.75]
    assert history["cpu:2/share"] == [0.25, 0.25]
    for name in ("cpu:1/busy_seconds", "cpu:2/busy_seconds"):
        assert len(history[name]) == 2
        assert all(seconds > 0 for seconds in history[name])
        waiting = history[name.replace("busy", "waiting")]
        assert all(0 < seconds < 60 for seconds in waiting)
    assert "cpu:1/memory_bytes" not in history  # of GPUs alone
    with file.open(encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    assert [float(row["cpu:1/share"]) for row in rows] == [0.75, 0.75]
    assert {"loss", "val_loss"} <= set(history)


def test_they_can_be_left_out() -> None:
    assert set(fitted(progress(in_logs=False))) == {"loss", "val_loss"}


def test_one_device_adds_nothing() -> None:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    x, y = np.ones((8, 5)), np.ones((8, 3))
    history = model.fit(x, y, verbose=0, callbacks=[progress()]).history
    assert set(history) == {"loss"}
