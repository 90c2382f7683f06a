"""A watched program ends with the same numbers, bit by bit, as one that is not watched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evener.doctor.facts import Outcome
from evener.doctor.watch import WatchLimits, watch

BEGIN = """\
import hashlib
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(3)
x = np.random.rand(200, 6, 6, 1).astype("float32")
y = np.random.randint(0, 3, 200)
model = keras.Sequential([
    keras.Input((6, 6, 1)), keras.layers.Conv2D(4, 3, activation="relu"),
    keras.layers.BatchNormalization(), keras.layers.Flatten(), keras.layers.Dropout(0.2),
    keras.layers.Dense(3)])
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(200, seed=1).batch(16).prefetch(2)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""
FIT = """
model.compile(keras.optimizers.Adam(0.01), loss_of, metrics=["accuracy"])
model.fit(data, epochs=3, validation_data=(x[:50], y[:50]), verbose=0)
"""
LOOP = """
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
@tf.function(jit_compile=True)
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss
for _ in range(3):
    for a, b in data:
        step(a, b)
"""
EAGER = """
optimizer = keras.optimizers.RMSprop(0.01)
for a, b in data.repeat(2):
    with tf.GradientTape(persistent=True) as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(b, model(a, training=True))
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""
END = """
numbers = [w.numpy() for w in model.weights] + [np.random.rand(3), keras.random.uniform((3,))]
print(hashlib.sha256(b"".join(np.asarray(n).tobytes() for n in numbers)).hexdigest())
"""


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(FIT, id="fit"),
        pytest.param(LOOP, id="compiled loop", marks=pytest.mark.long),
        pytest.param(EAGER, id="eager", marks=pytest.mark.long),
    ],
)
def test_the_last_numbers_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + training + END, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    alone = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env=os.environ
    )
    limits = WatchLimits(time_limit_seconds=280.0, num_steps=1_000_000)
    seen = watch(script, limits=limits)
    assert seen.ending.outcome is Outcome.FINISHED, seen.ending.output_tail
    assert seen.missed == ()
    assert seen.main_steps is not None
    assert seen.ending.output_tail.split()[-1] == alone.stdout.split()[-1]
