"""Program of the fault campaign: a Keras training whose every step is written to a log.

Arguments: file for the weights and the history, number of epochs, folder for the logs of the steps,
folder for checkpoints if there are to be any, and ``pipeline`` for a pipeline of tf.data, of which
each worker maps its own rows, or ``loop`` for a loop of the program's own.
Each worker has a log of its own, so that a step that is lost or made twice is seen. The program
validates, assigns the learning rate and saves behind each epoch, as ordinary programs do.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from evener import CheckpointCallback

NUM_SAMPLES, BATCH_SIZE = 500, 64


class StepLog(keras.callbacks.Callback):
    """Writes a line for every step that is finished."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file = (folder / f"steps-{os.getpid()}.jsonl").open("a")
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = self._epoch * -(-NUM_SAMPLES // BATCH_SIZE) + batch
        self._file.write(json.dumps([step, time.time()]) + "\n")
        self._file.flush()


def scaled(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.sqrt(x) * 2.0 - 1.0, y


def train_in_a_loop(
    model: keras.Model, samples: tf.data.Dataset, num_epochs: int, log: StepLog
) -> list[np.ndarray]:
    """Train by steps of the program's own, with assignments of eager variables between them.

    Returns:
        The losses' running mean, which the steps read, and the accuracy of each epoch.
    """
    optimizer, loss_of = model.optimizer, model.loss
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    mean, most = tf.Variable(1.0), tf.Variable(0.0)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_of(y, logits) / (1.0 + mean)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        accuracy.update_state(y, logits)
        most.assign(tf.maximum(most, loss))
        return loss

    means, accuracies = [], []
    for epoch in range(num_epochs):
        optimizer.learning_rate.assign(0.02 / (1 + epoch % 7))
        log.on_epoch_begin(epoch)
        for batch, (x, y) in enumerate(samples):
            loss = step(x, y)
            mean.assign(0.9 * mean + 0.1 * loss)
            log.on_train_batch_end(batch)
        means.append(mean.numpy())
        accuracies.append(accuracy.result().numpy())
        accuracy.reset_state()
    return [np.asarray(most), np.asarray(means), np.asarray(accuracies)]


def main(
    file: str, num_epochs: int, folder: Path, checkpoints: str = "", data: str = "arrays"
) -> None:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((20,)),
            layers.Dense(64, activation="tanh"),
            layers.Dropout(0.3, seed=3),
            layers.BatchNormalization(),
            layers.Dense(5),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.02, momentum=0.5, global_clipnorm=1.0)
    model.compile(optimizer, loss, metrics=["accuracy"])
    rng = np.random.default_rng(0)
    x = rng.random((NUM_SAMPLES, 20), np.float32)
    y = rng.integers(0, 5, NUM_SAMPLES)
    best = {"monitor": "val_loss", "patience": num_epochs, "restore_best_weights": True}
    callbacks: list[keras.callbacks.Callback] = [
        StepLog(folder),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.02 / (1 + epoch % 7)),
        keras.callbacks.CSVLogger(f"{file}.csv"),
        keras.callbacks.ModelCheckpoint(f"{file}.keras", save_best_only=True),
        keras.callbacks.EarlyStopping(**best),
    ]
    if checkpoints:
        callbacks.append(CheckpointCallback(checkpoints, every_steps=25, every_epoch=False, keep=2))
    samples = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(NUM_SAMPLES, seed=4)
    samples = samples.map(scaled).batch(BATCH_SIZE)
    if data == "loop":
        logs = train_in_a_loop(model, samples, num_epochs, StepLog(folder))
    else:
        given = {"x": samples} if data == "pipeline" else {"x": x, "y": y, "batch_size": BATCH_SIZE}
        given["validation_data"] = (x[:100], y[:100])
        history = model.fit(**given, epochs=num_epochs, verbose=0, callbacks=callbacks)
        logs = [np.asarray(history.history[name]) for name in sorted(history.history)]
    optimizer_state = [np.asarray(variable) for variable in optimizer.variables]
    np.savez(file, *model.get_weights(), *optimizer_state, *logs)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
