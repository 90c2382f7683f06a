"""`evener.report.Progress`: what it adds to Keras's logs, and its view in a notebook."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import keras
import nbclient
import nbformat
import numpy as np
import pytest
from rich.console import Console

import evener
from evener.recording.record import logging_epochs
from evener.report import Progress


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


def test_a_run_writes_them_without_a_change_of_the_program(tmp_path: Path) -> None:
    strategy = evener.Strategy(devices=["cpu:1", "cpu:2"], shares=[3, 1])
    x, y = np.ones((64, 5)), np.ones((64, 3))
    with logging_epochs(strategy, tmp_path / "logs"):
        with strategy.scope():
            model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
            model.compile("sgd", "mse")
        history = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history
        model.fit(x, y, epochs=2, verbose=0, validation_data=(x, y), validation_freq=2)
    assert set(history) == {"loss"}
    tables: list[list[dict[str, str]]] = []
    for number in (1, 2):
        folder = tmp_path / "logs" / f"fit_{number}"
        assert list(folder.glob("events.out.tfevents.*"))
        with (folder / "epochs.csv").open(encoding="utf-8") as text:
            tables.append(list(csv.DictReader(text)))
    without, validated = tables
    devices = {f"cpu:{k}/{what}" for k in (1, 2) for what in ("share", "busy")}
    assert set(without[0]) == {"epoch", "loss", "samples_per_second", *devices}
    assert [row["cpu:1/share"] for row in without] == ["0.75", "0.75"]
    assert [float(row["loss"]) for row in without] == history["loss"]
    assert all(0 < float(row["cpu:2/busy"]) <= 1.5 for row in without)
    assert [bool(row["val_loss"]) for row in validated] == [False, True]


class _FullDisk(keras.callbacks.Callback):
    """From the second epoch on the table is written to a device without space."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if epoch == 1:
            table = self._folder / "fit_1" / "epochs.csv"
            table.unlink()
            table.symlink_to("/dev/full")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this device")
def test_a_full_disk_does_not_end_the_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    strategy = evener.Strategy(devices=["cpu:1", "cpu:2"])
    x, y = np.ones((16, 5)), np.ones((16, 3))
    with logging_epochs(strategy, tmp_path):
        with strategy.scope():
            model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
            model.compile("sgd", "mse")
        full = _FullDisk(tmp_path)
        history = model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[full]).history
        model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    assert len(history["loss"]) == 3
    said = [line for line in capfd.readouterr().err.splitlines() if "--log-dir" in line]
    assert said == [
        f"evener: --log-dir: nothing more is written to {tmp_path}, the training goes on: "
        "No space left on device"
    ]


def test_one_device_adds_nothing() -> None:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    x, y = np.ones((8, 5)), np.ones((8, 3))
    history = model.fit(x, y, verbose=0, callbacks=[progress()]).history
    assert set(history) == {"loss"}


CELL = """
import keras
import numpy as np
import evener
from evener.report import Progress

strategy = evener.Strategy(devices="cpu:2")
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=2, callbacks=[Progress("In a notebook")])
print("below")
"""


@pytest.mark.long
def test_the_view_is_updated_in_place_in_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(evener.__file__).parents[1]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    outputs = notebook.cells[0].outputs
    views = [output["data"]["text/html"] for output in outputs if "data" in output]
    views = [view for view in views if "In a notebook" in view]
    assert len(views) == 1
    assert "epoch 2/2" in views[0] and "cpu:1" in views[0] and "loss" in views[0]
    text = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    assert "below" in text
    # Keras's own bar.
    assert "Epoch 1/2" not in text
