"""Stall of checkpoints while training, and seconds to restore them, beside Keras and TensorFlow.

Usage: ``python benchmarks/checkpoint.py [--megabytes 100] [--rounds 3]``

Each round trains the same model in turns: without checkpoints, with `evener.CheckpointCallback`,
with `keras.callbacks.BackupAndRestore`, and with a plain `tf.train.Checkpoint` that is saved. There
is one checkpoint per 50 steps. The stall is the time that steps take on average beyond the median
step of the same run, so that it does not depend on how busy the machine was in another run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import evener

STEPS = 150
EVERY = 50
WIDTH = 1024


class StepTimes(keras.callbacks.Callback):
    """Notes the time at the beginning of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())

    def on_train_end(self, logs: Any = None) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())

    @property
    def stall(self) -> float:
        """Mean seconds of a step, by the median, less 1; without the first steps."""
        seconds = np.diff(self.times)[5:]
        return float(np.mean(seconds) / np.median(seconds) - 1)


class Plain(keras.callbacks.Callback):
    """Saves a `tf.train.Checkpoint`, and waits for it.

    Args:
        folder: Folder of the checkpoints.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self._manager: tf.train.CheckpointManager | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save each 50 steps."""
        if self._manager is None:
            kept = tf.train.Checkpoint(model=self.model, optimizer=self.model.optimizer)
            self._manager = tf.train.CheckpointManager(kept, self._folder, max_to_keep=3)
        if (batch + 1) % EVERY == 0:
            self._manager.save()


def make_model(megabytes: int) -> keras.Model:
    """Return a model whose weights and Adam state have a number of megabytes.

    Args:
        megabytes: Number of megabytes.
    """
    num_layers = max(round(megabytes * 1e6 / (3 * 4 * WIDTH * WIDTH)), 1)
    hidden = [keras.layers.Dense(WIDTH, "relu") for _ in range(num_layers)]
    model = keras.Sequential([keras.Input((WIDTH,)), *hidden, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def callbacks(name: str, folder: str) -> list[keras.callbacks.Callback]:
    """Return the callbacks of a way to save.

    Args:
        name: Name of the way.
        folder: Folder for its files.
    """
    if name == "evener":
        return [evener.CheckpointCallback(folder, every_steps=EVERY, every_epoch=False)]
    if name == "BackupAndRestore":
        backup = keras.callbacks.BackupAndRestore
        return [backup(folder, save_freq=EVERY, delete_checkpoint=False)]
    return [Plain(folder)] if name == "tf.train.Checkpoint" else []


def timed(action: Callable[[], Any]) -> float:
    """Return the seconds that an action takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def restorers(model: keras.Model, folders: dict[str, str]) -> dict[str, Callable[[], Any]]:
    """Return a function for each way that restores its newest checkpoint."""
    plain = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    backup = str(Path(folders["BackupAndRestore"]) / "latest.weights.h5")
    newest = tf.train.latest_checkpoint(folders["tf.train.Checkpoint"])
    return {
        "evener": evener.Checkpoint(folders["evener"], model=model).restore,
        "BackupAndRestore": lambda: model.load_weights(backup),
        "tf.train.Checkpoint": lambda: plain.restore(newest).assert_existing_objects_matched(),
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    given = parser.parse_args()
    names = ("none", "evener", "BackupAndRestore", "tf.train.Checkpoint")
    model = make_model(given.megabytes)
    x = np.random.default_rng(0).normal(size=(given.batch * STEPS, WIDTH)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(given.batch)
    model.fit(data.take(3), verbose=0)
    num_bytes = sum(v.value.numpy().nbytes for v in (*model.variables, *model.optimizer.variables))
    stalls: dict[str, list[float]] = {name: [] for name in names}
    steps = StepTimes()
    with tempfile.TemporaryDirectory() as root:
        folders = dict[str, str]()
        for number in range(given.rounds):
            for name in names:
                # Otherwise it would be resumed.
                folders[name] = str(Path(root) / f"{name}-{number}")
                steps = StepTimes()
                model.fit(data, verbose=0, callbacks=[*callbacks(name, folders[name]), steps])
                stalls[name].append(steps.stall)
        restored = {name: timed(restore) for name, restore in restorers(model, folders).items()}
    step_seconds = float(np.median(np.diff(steps.times)))
    print(f"{num_bytes / 1e6:.0f} MB, {STEPS} steps of {step_seconds * 1e3:.0f} ms")
    for name in names:
        restore = f"restore {restored[name]:6.2f} s" if name in restored else ""
        print(f"{name:22} stall {statistics.median(stalls[name]):7.1%}   {restore}")


if __name__ == "__main__":
    main()
