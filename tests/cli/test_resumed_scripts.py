"""`evener run --checkpoint`: unchanged scripts that are killed and run again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cli.forked import Run

RESUMED = ("run", "--devices", "cpu:2", "--shares", "3,1", "--checkpoint", "kept")

SCRIPT = """
import os, signal, sys
from pathlib import Path

import keras, numpy as np, tensorflow as tf

kind, killed_in_fit, killed_in_epoch, killed_at = sys.argv[1], *map(int, sys.argv[2:])
x = np.random.default_rng().normal(size=(64, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)

class InOrder(keras.utils.PyDataset):
    order = None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.order is None:
            self.order = np.arange(64)
        chosen = self.order[index * 8 : index * 8 + 8]
        return x[chosen] + np.random.normal(size=(8, 4)).astype("float32"), y[chosen]

    def on_epoch_end(self):
        self.order = np.random.permutation(64)

def generate():
    # A thread draws ahead of the steps: from the global generator, no two runs would draw alike.
    rng = np.random.default_rng(3)
    while True:
        chosen = rng.integers(0, 64, 8)
        yield x[chosen], y[chosen]

def make():
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(8)

shared = make()
ordered = InOrder()

class Seen(keras.callbacks.Callback):
    def __init__(self, number):
        super().__init__()
        self.number, self.losses, self.best = number, [], {}

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])
        self.best = {"loss": min(self.losses), "text": f"{batch}"}

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        at = self.number, self.epoch, batch
        if at == (killed_in_fit, killed_in_epoch, killed_at) and Path("kill").exists():
            os.kill(os.getpid(), signal.SIGKILL)

for number in (1, 2):
    model = keras.Sequential([
        keras.Input((4,)),
        keras.layers.Dense(3 + number, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    ])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    seen = Seen(number)
    data = {
        "arrays": lambda: {"x": x, "y": y, "batch_size": 8, "validation_split": 0.25},
        "dataset": lambda: {"x": shared, "validation_data": shared},
        "steps": lambda: {"x": make().repeat(), "steps_per_epoch": 5, "validation_data": shared},
        "PyDataset": lambda: {"x": ordered},
        "generator": lambda: {"x": generate(), "steps_per_epoch": 6},
    }[kind]()
    stops = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
    more = [stops] if "validation_split" in data else []
    history = model.fit(**data, epochs=3, verbose=0, callbacks=[*more, seen])
    print(history.epoch, history.history, seen.losses, seen.best)
    print(model.evaluate(x, y, verbose=0), float(model.predict(x, verbose=0).sum()))
    # A thread draws from a generator ahead of the steps.
    print(kind == "generator" or np.random.rand())
    print([weight.tobytes().hex() for weight in model.get_weights()])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("arrays", ("1", "1", "2")),
        ("arrays", ("2", "0", "5")),
        ("dataset", ("2", "1", "4")),
        ("steps", ("2", "2", "3")),
        ("PyDataset", ("2", "1", "4")),
        ("generator", ("2", "1", "5")),
    ],
)
def test_a_killed_script_ends_with_the_bits_of_an_undisturbed_one(
    kind: str, at: tuple[str, ...], run_forked: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    every = ("--every-steps", "2", "train.py", kind, *at)
    (tmp_path / "kill").touch()
    killed = run_forked("evener", *RESUMED, *every)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (tmp_path / "kill").unlink()
    resumed = run_forked("evener", *RESUMED, *every)
    assert resumed.returncode == 0, resumed.stderr
    assert "this fit goes on behind what was done" in resumed.stderr
    # The seed of the run, without its checkpoints.
    for folder in (tmp_path / "kept").glob("fit-*"):
        folder.rename(tmp_path / f"before {folder.name}")
    undisturbed = run_forked("evener", *RESUMED, *every)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert resumed.stdout == undisturbed.stdout
