"""Rules on checkpoints, in the styles in which people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.doctor.table import check_finds, check_quiet

MODEL = """
import os

import keras
import numpy as np
import tensorflow as tf

x, y = tf.zeros((640, 8)), tf.zeros((640, 100))


def build():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(100)])
    model.compile(optimizer="adam", loss="mse")
    return model


model = build()
"""
WORKERS = """
import json
import os

import keras
import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
task_type, task_id = config["task"]["type"], config["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(100)])
    model.compile("adam", "mse")


def is_chief():
    return task_type is None or task_id == 0


"""
OPTIMIZER = """
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(100)])
optimizer = keras.optimizers.Adam()


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))


"""

FINDS = [
    (
        "DOC-501",
        MODEL
        + """
path = "best-{epoch:02d}.weights.h5"
model.fit(x, y, callbacks=[keras.callbacks.ModelCheckpoint(path, save_weights_only=True)])
model.load_weights(path)  # finding: DOC-501
""",
    ),
    (
        "DOC-501",
        MODEL
        + """
directory = "weights"
model.fit(x, y)
model.save_weights(os.path.join(directory, "w.weights.h5"))
model.load_weights(tf.train.latest_checkpoint(directory))  # finding: DOC-501
""",
    ),
    (
        "DOC-502",
        MODEL
        + """
WEIGHTS = "run/last.weights.h5"
if os.path.exists(WEIGHTS):
    model.load_weights(WEIGHTS)  # finding: DOC-502
saver = keras.callbacks.ModelCheckpoint(WEIGHTS, save_weights_only=True)
model.fit(x, y, epochs=10, callbacks=[saver])
""",
    ),
    (
        "DOC-502",
        MODEL
        + """
import argparse
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    args = parser.parse_args()
    net = build()
    if args.resume:
        net.load_weights(args.resume)  # finding: DOC-502
    net.fit(x, y, epochs=10)
    net.save_weights("final.weights.h5")
main()
""",
    ),
    (
        "DOC-503",
        WORKERS + 'if is_chief():\n    model.save("model.keras")  # finding: DOC-503\n',
    ),
    (
        "DOC-503",
        WORKERS
        + """
callbacks = []
if task_id == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("m.keras"))  # finding: DOC-503
model.fit(tf.zeros((64, 8)), tf.zeros((64, 100)), callbacks=callbacks)
""",
    ),
    (
        "DOC-503",
        WORKERS
        + """
def save():
    if not is_chief():
        return
    model.save_weights("m.weights.h5")  # finding: DOC-503
save()
""",
    ),
    (
        "DOC-503",
        WORKERS
        + """
ckpt = tf.train.Checkpoint(model=model)
chief = task_type == "chief"
if chief:
    ckpt.restore(tf.train.latest_checkpoint("ckpts"))  # finding: DOC-503
""",
    ),
]

QUIET = [
    (
        "DOC-501",
        MODEL
        + """
ckpt = tf.train.Checkpoint(model=model)
manager = tf.train.CheckpointManager(ckpt, "./ckpts", max_to_keep=2)
path = manager.save()
print("saved", path)
ckpt.restore(manager.latest_checkpoint)
ckpt.write("exact/name")
ckpt.read("exact/name")
print("exact/name")
model.save("m.keras")
print("saved m.keras")
np.savez("final.npz", *model.get_weights())
np.load("final.npz")
""",
    ),
    (
        "DOC-501",
        MODEL
        + """
prefix = "ckpts/net"
saved = tf.train.Checkpoint(model=model).save(prefix)
print("checkpoint:", saved)
print("folder:", os.path.dirname(prefix))
""",
    ),
    (
        "DOC-502",
        MODEL
        + """
best = "best.weights.h5"
saver = keras.callbacks.ModelCheckpoint(best, save_weights_only=True, save_best_only=True)
model.fit(x, y, validation_split=0.1, callbacks=[saver])
model.load_weights(best)
model.evaluate(x, y)
""",
    ),
    (
        "DOC-502",
        MODEL
        + """
model.load_weights("imagenet.weights.h5")
model.fit(x, y)
model.save_weights("mine.weights.h5")
""",
    ),
    (
        "DOC-502",
        MODEL
        + """
model.save_weights("initial.weights.h5")
for fold in range(3):
    model.load_weights("initial.weights.h5")
    model.fit(x, y)
""",
    ),
    (
        "DOC-502",
        OPTIMIZER
        + """
ckpt = tf.train.Checkpoint(step=tf.Variable(0), model=model, opt=optimizer)
ckpt.restore(tf.train.latest_checkpoint("ckpts"))
for a, b in tf.data.Dataset.from_tensors((tf.zeros((4, 8)), tf.zeros((4, 100)))):
    step(a, b)
ckpt.save("ckpts/net")
""",
    ),
    (
        "DOC-502",
        MODEL.replace('"adam"', '"sgd"')
        + """
if os.path.exists("a.weights.h5"):
    model.load_weights("a.weights.h5")
model.fit(x, y)
model.save_weights("a.weights.h5")
""",
    ),
    (
        "DOC-503",
        WORKERS
        + """
def path_for(base):
    return base if is_chief() else os.path.join("/tmp", f"worker{task_id}", base)
model.save(path_for("model.keras"))
if is_chief():
    print("done")
""",
    ),
    (
        "DOC-503",
        WORKERS
        + """
if is_chief():
    model.save("model.keras")
else:
    model.save(f"/tmp/worker{task_id}.keras")
""",
    ),
    (
        "DOC-503",
        MODEL
        + """
is_chief = True
if is_chief:
    model.save("m.keras")
""",
    ),
]


@pytest.mark.parametrize(("code", "program"), FINDS)
def test_a_mistake_is_found_at_its_line(code: str, program: str, tmp_path: Path) -> None:
    check_finds(code, program, tmp_path)


@pytest.mark.parametrize(("code", "program"), QUIET)
def test_what_only_looks_like_a_mistake_is_not_found(
    code: str, program: str, tmp_path: Path
) -> None:
    check_quiet(code, program, tmp_path)
