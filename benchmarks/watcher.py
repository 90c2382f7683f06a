"""CPU milliseconds of a training step with and without the watcher, in processes that take turns.

The watched program ends by itself here, and must end with the same weights.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from side_by_side.figures import terminal

from evener.doctor.watch import WatchLimits, watch

BEGIN = """\
import hashlib, statistics, time
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
x = np.random.rand(2000, 16, 16, 3).astype("float32")
y = np.random.randint(0, 10, 2000)
model = keras.Sequential([
    keras.Input((16, 16, 3)), keras.layers.Conv2D(16, 3, activation="relu"),
    keras.layers.Flatten(), keras.layers.Dense(10)])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
times = []
"""
FIT = """
class Clock(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        times.append(time.process_time())
model.compile("adam", loss_of)
times.append(time.process_time())
model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[Clock()])
"""
LOOP = """
optimizer = keras.optimizers.Adam()
{decorator}
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
times.append(time.process_time())
for batch in tf.data.Dataset.from_tensor_slices((x, y)).batch(32).repeat(2):
    step(*batch)
    times.append(time.process_time())
"""
END = """
steps = [1000 * (after - before) for before, after in zip(times, times[1:])]
weights = b"".join(weight.numpy().tobytes() for weight in model.weights)
print("RESULT", statistics.median(steps[20:]), steps[0], hashlib.sha256(weights).hexdigest())
"""
PROGRAMS = {
    "fit": FIT,
    "traced step": LOOP.replace("{decorator}", "@tf.function"),
    "eager step": LOOP.replace("{decorator}", ""),
}


def result_in(output: str) -> tuple[float, float, str]:
    line = next(line for line in output.splitlines() if line.startswith("RESULT"))
    _, median, first, weights = line.split()
    return float(median), float(first), weights


def main(*, rounds: Annotated[int, typer.Option(min=1)] = 3) -> None:
    """Time programs alone and watched."""
    table = Table(
        "program", "step alone, CPU ms", "watched", "first alone, CPU ms", "watched", "weights"
    )
    for name, training in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            script.write_text(BEGIN + training + END, encoding="utf-8")
            alone, watched = [], []
            for _ in range(rounds):
                run = subprocess.run(
                    [sys.executable, str(script)], capture_output=True, text=True, check=True
                )
                alone.append(result_in(run.stdout))
                limits = WatchLimits(time_limit_seconds=600.0, num_steps=1_000_000)
                watched.append(result_in(watch(script, limits=limits).ending.output_tail))
        medians = [
            f"{statistics.median(results[index] for results in runs):.2f}"
            for index in (0, 1)
            for runs in (alone, watched)
        ]
        are_equal = len({weights for *_, weights in (*alone, *watched)}) == 1
        table.add_row(name, *medians, "equal" if are_equal else "DIFFERENT")
    terminal().print(table)


if __name__ == "__main__":
    typer.run(main)
