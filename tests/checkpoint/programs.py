"""Models and data for fits that are ended and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import evener

NUM_SAMPLES = 100
BATCH = 8
X = np.random.default_rng(0).normal(size=(NUM_SAMPLES, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class EndedError(Exception):
    """End of a fit at a step, as by a crash."""


class EndAt(keras.callbacks.Callback):
    """Ends a fit after a number of steps.

    Args:
        num_steps: Number of steps, from 1.
    """

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        # Not a number or a list: those are restored.
        self._left = np.array([num_steps])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the step, and end the fit after the last."""
        self._left[0] -= 1
        if self._left[0] == 0:
            raise EndedError


class OwnOrder(keras.utils.PyDataset):
    """Data that shuffles itself by NumPy's global generator after each epoch."""

    def __init__(self, *, draws: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._order = np.arange(NUM_SAMPLES)
        self._draws = draws

    def __len__(self) -> int:
        """Return the number of batches."""
        return NUM_SAMPLES // BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a batch, with noise if it draws."""
        chosen = self._order[index * BATCH : (index + 1) * BATCH]
        noise = np.random.normal(size=(len(chosen), 4)) if self._draws else 0
        return (X[chosen] + noise).astype("float32"), Y[chosen]

    def on_epoch_end(self) -> None:
        """Shuffle."""
        np.random.shuffle(self._order)


def _generated() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    while True:
        chosen = np.random.randint(0, NUM_SAMPLES, BATCH)
        yield X[chosen], Y[chosen]


def _dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(NUM_SAMPLES, seed=3)


KINDS = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": BATCH},
    "arrays in order": lambda: {"x": X, "y": Y, "batch_size": BATCH, "shuffle": False},
    "arrays by batch": lambda: {"x": X, "y": Y, "batch_size": BATCH, "shuffle": "batch"},
    "arrays with steps": lambda: {"x": X, "y": Y, "batch_size": BATCH, "steps_per_epoch": 7},
    "dataset": lambda: {"x": _dataset().batch(BATCH)},
    "repeated dataset": lambda: {"x": _dataset().batch(BATCH).repeat(), "steps_per_epoch": 7},
    "dataset of unknown length": lambda: {
        "x": _dataset().filter(lambda x, y: x[0] > -1.0).batch(BATCH)
    },
    "generator": lambda: {"x": _generated(), "steps_per_epoch": 6},
    "PyDataset": lambda: {"x": OwnOrder()},
    "PyDataset that draws": lambda: {"x": OwnOrder(draws=True)},
    "PyDataset in threads": lambda: {"x": OwnOrder(workers=2)},
}


def make_model(seed: int | None = 1) -> keras.Model:
    """Return a compiled model with dropout, BatchNormalization and Adam.

    Args:
        seed: Seed of the program; None for none.
    """
    if seed is not None:
        keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "relu", name="hidden"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dropout(0.3, name="drop"),
            keras.layers.Dense(1, name="out"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def train(
    model: keras.Model,
    folder: Any,
    data: dict[str, Any],
    *more: Any,
    epochs: int = 3,
    **options: Any,
) -> tuple[list[np.ndarray], dict[str, list[float]]]:
    """Train a model with checkpoints; return its weights and the history.

    Args:
        model: Compiled model.
        folder: Folder of the checkpoints.
        data: Arguments of ``fit``.
        *more: Other callbacks.
        epochs: Number of epochs.
        **options: Arguments of the callback.
    """
    callback = evener.CheckpointCallback(folder, **{"every_steps": 1, **options})
    history = model.fit(**data, epochs=epochs, verbose=0, callbacks=[callback, *more])
    return model.get_weights(), history.history
