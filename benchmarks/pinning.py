"""Bytes that a step moves between devices, pinned and with plain TensorFlow.

Nothing is timed or run: each step is placed as TensorFlow would, and its copies are counted.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from rich.table import Table
from side_by_side.contenders import stand_ins
from side_by_side.figures import terminal

STEPS = {
    "loop, two weights of 64 x 64, batch 8": "loop",
    "Keras 32-64 | 64-64-4, batch 16, Adam: train_step": "train_step",
    "the same in fit": "fit",
}


def loop(*, pinned: bool) -> int:
    """Return the bytes of a loop's step on two devices."""
    import tensorflow as tf

    import evener

    on: Any = evener.pin if pinned else tf.device
    with on("cpu:1"):
        first = tf.Variable(tf.random.normal([64, 64]))
    with on("cpu:2"):
        second = tf.Variable(tf.random.normal([64, 64]))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with on("cpu:1"):
                h = tf.nn.relu(x @ first)
            with on("cpu:2"):
                loss = tf.reduce_sum(tf.nn.relu(h @ second))
        gradients = tape.gradient(loss, [first, second])
        for variable, gradient in zip((first, second), gradients, strict=True):
            with tf.device(variable.device):
                variable.assign_sub(gradient * 0.01)
        return loss

    return evener.audit(step, tf.ones([8, 64])).moved_bytes


def keras_model(*, pinned: bool) -> Any:
    """Return a compiled Keras model on two devices."""
    import keras
    import tensorflow as tf

    import evener

    dense = keras.layers.Dense
    parts = [dense(64, activation="tanh"), dense(64, activation="tanh"), dense(4)]
    sizes = zip((1, 2, 2), parts, (32, 64, 64), strict=True)
    for number, part, size in sizes:
        if pinned:
            evener.pin(f"cpu:{number}")(part)
        else:
            with tf.device(f"cpu:{number}"):
                part.build((None, size))

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts = parts

        def call(self, x: Any) -> Any:
            if pinned:
                return parts[2](parts[1](parts[0](x)))
            with tf.device("cpu:1"):
                x = parts[0](x)
            with tf.device("cpu:2"):
                return parts[2](parts[1](x))

    model = Model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    return model


def fit(*, pinned: bool) -> int:
    """Return the bytes of a step of ``fit``."""
    import numpy as np

    import evener

    x, y = np.ones((16, 32), "float32"), np.zeros(16, "int32")
    return evener.audit(keras_model(pinned=pinned), x, y).moved_bytes


def train_step(*, pinned: bool) -> int:
    """Return the bytes of Keras's ``train_step`` in a function of one's own."""
    import tensorflow as tf

    import evener

    model = keras_model(pinned=pinned)
    x, y = tf.ones((16, 32)), tf.zeros(16, tf.int32)
    model(x)
    model.optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return model.train_step((x, y))["loss"]

    step(x, y)  # Builds the loss.
    return evener.audit(step, x, y).moved_bytes


def main() -> None:
    """Print the table; each figure comes from a process of its own."""
    if len(sys.argv) == 3:
        stand_ins(3)
        print(
            {"loop": loop, "fit": fit, "train_step": train_step}[sys.argv[1]](
                pinned=sys.argv[2] == "pinned"
            )
        )
        return
    table = Table(title="bytes moved between devices per step", title_justify="left")
    table.add_column("step")
    for heading in ("plain TensorFlow", "pinned", "factor"):
        table.add_column(heading, justify="right")
    for title, step in STEPS.items():
        plain, pinned = (_in_a_process(step, how) for how in ("plain", "pinned"))
        table.add_row(title, f"{plain:,}", f"{pinned:,}", f"{plain / pinned:.1f}")
    terminal().print(table)


def _in_a_process(step: str, how: str) -> int:
    # What pins is put into TensorFlow for the whole process.
    command = [sys.executable, __file__, step, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
