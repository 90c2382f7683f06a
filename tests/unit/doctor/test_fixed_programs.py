"""Fixed programs run, and compute what they were meant to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evener.doctor.fix import fix_for
from unit.doctor.programs import surroundings_of

TOP = """import json
import keras
import numpy as np
import tensorflow as tf

cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
s = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
"""
END = """
print("RESULT", json.dumps([w.tolist() for w in m.get_weights()]))
"""
FIT = """    m.compile({compile})
m.fit(x, y, batch_size=16, shuffle=False, verbose=0)
"""
MODEL = "m = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])\n"
SCOPE = "with s.scope():\n"
LOOP = """    o = keras.optimizers.Adam(0.1)
    o.build(m.trainable_variables)

def loss_of(y, output):
    losses = tf.reduce_mean(tf.square(y - output), axis=1)
    return tf.nn.compute_average_loss(losses, global_batch_size=16)

def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, m(x, training=True))
    grads = tape.gradient(loss, m.trainable_variables)
    o.apply_gradients(zip(grads, m.trainable_variables))
    return loss

data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
for _ in range(2):
    for a, b in s.experimental_distribute_dataset(data):
        s.run(step, args=(a, b))
"""
# The code of the rule, a wrong program, what it was meant to be, and whether it fails.
PROGRAMS = {
    "model": ("DOC-215", MODEL + SCOPE + FIT, SCOPE + "    " + MODEL + FIT, True),
    "optimizer": (
        "ENG-003",
        SCOPE + "    " + MODEL + "o = keras.optimizers.Adam(0.1)\n" + SCOPE + FIT,
        SCOPE + "    " + MODEL + "    o = keras.optimizers.Adam(0.1)\n" + FIT,
        True,
    ),
    "compile": (
        "ENG-003",
        SCOPE + "    " + MODEL + FIT.replace("    m.compile", "m.compile"),
        SCOPE + "    " + MODEL + FIT,
        False,
    ),
    "step": ("DOC-407", SCOPE + "    " + MODEL + LOOP, SCOPE + "    " + MODEL + LOOP, False),
}


def run(program: str, folder: Path) -> list[np.ndarray] | None:
    """Run a program; return its weights, or None if it fails."""
    path = folder / "run.py"
    path.write_text(program, "utf-8")
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        return None
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return [np.array(weight) for weight in json.loads(line.removeprefix("RESULT "))]


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fixed_program_computes_what_was_meant(name: str, tmp_path: Path) -> None:
    code, wrong, right, fails = PROGRAMS[name]
    arguments = "o, 'mse'" if name == "optimizer" else "'adam', 'mse'"
    wrong, right = (TOP + text.replace("{compile}", arguments) + END for text in (wrong, right))
    path = tmp_path / "train.py"
    path.write_text(wrong, "utf-8")
    found = fix_for(path, surroundings_of("", num_gpus=2))
    assert [fix.code for fix in found.made] == [code]
    fixed = run(next(iter(found.contents.values()))[1].decode(), tmp_path)
    meant = run(right, tmp_path)
    assert fixed is not None and meant is not None
    for one_weight, other_weight in zip(fixed, meant, strict=True):
        np.testing.assert_allclose(one_weight, other_weight, rtol=1e-5, atol=1e-6)
    if fails:
        assert run(wrong, tmp_path) is None
