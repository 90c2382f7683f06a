"""Program that writes by all callbacks of Keras, and by TensorFlow, and reads it back.

Arguments: folder for all that it writes, number of epochs, and the moment at which the first worker
kills itself: ``"write"``, in the middle of a file of weights; ``"step"``, in the middle of an
epoch;
or ``"never"``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

JOB = json.loads(os.environ.get("EVENER_JOB", "{}"))


def die_once(folder: Path) -> None:
    """Kill this worker, if it is the first one, and no replacement."""
    if JOB.get("index") == 0 and not JOB.get("incarnation"):
        (folder.parent / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Fragile(keras.layers.Layer):
    """Layer that does nothing, and may die when it is saved."""

    def __init__(self, folder: Path | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._folder = folder

    def save_own_variables(self, store: Any) -> None:
        if self._folder is not None and (self._folder / "2.weights.h5").exists():
            die_once(self._folder)

    def get_config(self) -> dict[str, Any]:
        return super().get_config()

    def call(self, inputs: Any) -> Any:
        return inputs


class Death(keras.callbacks.Callback):
    """Dies in the third epoch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._epoch == 2 and batch == 1:
            die_once(self._folder)


def train(folder: Path, num_epochs: int, moment: str) -> keras.Model:
    callbacks = keras.callbacks
    fragile = Fragile(folder if moment == "write" else None)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), fragile])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    rng = np.random.default_rng(0)
    x, y = rng.random((80, 6), np.float32), rng.random((80, 4), np.float32)
    written = [
        callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True),
        callbacks.BackupAndRestore(folder / "backup", double_checkpoint=True, save_freq=3),
        callbacks.CSVLogger(folder / "log.csv"),
        callbacks.TensorBoard(folder / "logs", update_freq=1),
    ]
    death = [Death(folder)] if moment == "step" else []
    model.fit(x, y, batch_size=16, epochs=num_epochs, verbose="auto", callbacks=[*written, *death])
    return model


def save(folder: Path, model: keras.Model) -> None:
    weights = model.get_weights()
    model.save(folder / "model.h5")
    again = keras.models.load_model(folder / "model.h5", {"Fragile": Fragile}, compile=False)
    model.export(folder / "exported", verbose=False)
    tf.saved_model.load(str(folder / "exported"))
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, str(folder / "managed"), max_to_keep=2)
    for _ in range(3):
        manager.save()
    checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()
    assert tf.train.latest_checkpoint(folder / "managed") == manager.latest_checkpoint
    checkpoint.save(folder / "numbered" / "at")
    with tf.summary.create_file_writer(str(folder / "own")).as_default():
        tf.summary.scalar("last", 1.0, step=0)
    try:
        model.save_weights("/nowhere/of.weights.h5")
    except OSError as error:
        print(type(error).__name__)
    for before, after in zip(weights, again.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def main(folder: Path, num_epochs: int, moment: str) -> None:
    drawn = float(np.random.default_rng().random())
    folder.mkdir(exist_ok=True)
    if moment != "unseeded":
        keras.utils.set_random_seed(1)
    model = train(folder, num_epochs, moment)
    save(folder, model)
    print("drawn", drawn, [float(weight.sum()) for weight in model.get_weights()])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
