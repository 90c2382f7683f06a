"""Step times of ``evener run --plan auto`` against simple layouts and MirroredStrategy.

The plans are those that ``--plan auto`` finds and tries. One process trains the program in four
ways in turns, epoch by epoch, so that a busy machine slows all of them: on one device, with even
shares on two CPU devices, by ``tf.distribute.MirroredStrategy`` on them, and with the plan that
stays after the trial. Medians over epochs; some eight minutes on an idle machine::

    .venv/bin/python benchmarks/tried_plans.py
    .venv/bin/python benchmarks/tried_plans.py --programs mlp,lstm --epochs 15
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Steps of an epoch.
NUM_STEPS = {
    "mlp": 200,
    "wide": 10,
    "convolutions": 10,
    "lstm": 20,
    "deep": 20,
    "embedding": 20,
    "transformer": 10,
    "normalization": 10,
    "signals": 20,
    "autoencoder": 30,
}
_NUM_WORDS = 20_000


def build(program: str) -> tuple[Any, Any]:
    """Return a compiled model and its data, a batch without end."""
    import keras
    import numpy as np
    import tensorflow as tf

    layers = keras.layers

    def convolution(*parts: Any) -> list[Any]:
        return [*parts, layers.GlobalAveragePooling2D()]

    body, shape = {
        "mlp": lambda: ([layers.Dense(64, "relu")], (16, 32)),
        "wide": lambda: ([layers.Dense(1024, "relu") for _ in range(3)], (256, 256)),
        "convolutions": lambda: (
            convolution(*(layers.Conv2D(32, 3, activation="relu") for _ in range(3))),
            (32, 24, 24, 3),
        ),
        "lstm": lambda: ([layers.LSTM(64)], (64, 20, 16)),
        "deep": lambda: ([layers.Dense(256, "relu") for _ in range(12)], (512, 256)),
        "embedding": lambda: (
            [layers.Embedding(_NUM_WORDS, 64), layers.GlobalAveragePooling1D()],
            (256, 32),
        ),
        "transformer": lambda: ([*map(_block, range(2)), layers.Flatten()], (16, 64, 128)),
        "normalization": lambda: (
            convolution(
                *(
                    part
                    for _ in range(3)
                    for part in (layers.Conv2D(32, 3), layers.BatchNormalization(), layers.ReLU())
                )
            ),
            (32, 24, 24, 3),
        ),
        "signals": lambda: (
            [
                *(layers.Conv1D(64, 5, activation="relu") for _ in range(3)),
                layers.GlobalMaxPooling1D(),
            ],
            (64, 128, 8),
        ),
        "autoencoder": lambda: (
            [layers.Dense(units, "relu") for units in (256, 64, 256, 784)],
            (256, 784),
        ),
    }[program]()
    model = keras.Sequential([keras.Input(shape[1:]), *body, layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    if program == "embedding":
        x = (np.abs(x) * 1e4).astype("int32") % _NUM_WORDS
    labels = x.reshape(len(x), -1)[:, :1].astype("float32")
    return model, tf.data.Dataset.from_tensors((x, labels)).repeat()


def _block(number: int) -> Any:
    """Return a block of a transformer, with attention over 64 positions."""
    import keras

    layers = keras.layers
    inputs = keras.Input((64, 128))
    attended = layers.LayerNormalization()(inputs)
    attended = inputs + layers.MultiHeadAttention(4, 32)(attended, attended)
    wide = layers.Dense(512, "gelu")(layers.LayerNormalization()(attended))
    return keras.Model(inputs, attended + layers.Dense(128)(wide), name=f"block_{number}")


def train(program: str) -> None:
    """Train as a script does, for the planner."""
    model, data = build(program)
    model.fit(data, steps_per_epoch=NUM_STEPS[program], verbose=0)


def compare(program: str, texts: list[str], start: int, num_epochs: int) -> None:
    """Train in four ways in turns, and print the medians as JSON."""
    import tensorflow as tf

    import evener
    from evener import Plan

    evener.use_devices("cpu:2")
    plans = [Plan.from_json(text) for text in texts]
    told: list[str] = []
    tried = evener.Strategy(plans[start], verify=False)
    tried.try_plans(plans, told.append)
    ways: dict[str, Any] = {
        "one device": evener.Strategy(Plan.data_parallel(["cpu:0"]), verify=False),
        "even shares": evener.Strategy(Plan.data_parallel(["cpu:0", "cpu:1"]), verify=False),
        "Mirrored": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
        "--plan auto": tried,
    }
    epochs: dict[str, Callable[[], Any]] = {}
    for way, strategy in ways.items():
        with strategy.scope():
            model, data = build(program)
        epochs[way] = lambda model=model, data=data: model.fit(
            data, steps_per_epoch=NUM_STEPS[program], verbose=0
        )
    while tried.trial is not None:
        epochs["--plan auto"]()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(num_epochs + 1):
        # Each is first in turn, and each comes after each: what ran before leaves its caches.
        order = [*epochs]
        random.Random(number).shuffle(order)
        for way in order:
            begin = time.perf_counter()
            epochs[way]()
            seconds[way].append((time.perf_counter() - begin) / NUM_STEPS[program])
    # The first epoch traces.
    medians = {way: statistics.median(times[1:]) for way, times in seconds.items()}
    print(json.dumps({"medians": medians, "told": told}))


def planned(program: str) -> tuple[list[str], int]:
    """Return the plans that ``--plan auto`` tries, as JSON, and the number of the first."""
    from evener.planner.planning import plans_to_try
    from evener.run.first_step import plan_script
    from evener.run.script import read

    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(
            f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            f"from tried_plans import train\ntrain({program!r})\n",
            encoding="utf-8",
        )
        found = plan_script(
            read(str(script), as_module=False), [], devices="cpu:2", gpu_names=True, time_limit=120
        )
    plans = plans_to_try(found)
    return [plan.to_json() for plan in plans], plans.index(found.plan)


def main() -> None:
    """Measure the programs, and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default=",".join(NUM_STEPS))
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--compare", help="Plans as JSON, of the process that trains.")
    options = parser.parse_args()
    if options.compare:
        compare(options.programs, *json.loads(options.compare), options.epochs)
        return
    ways = "".join(f"{way:>14}" for way in ("one device", "even shares", "Mirrored", "--plan auto"))
    print(f"{'program':14}{ways}   auto / best")
    for program in options.programs.split(","):
        words = [sys.executable, __file__, "--programs", program, "--epochs", str(options.epochs)]
        words += ["--compare", json.dumps(planned(program))]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{program}: {done.stderr[-2000:]}")
        found = json.loads(done.stdout.strip().splitlines()[-1])
        *others, auto = found["medians"].values()
        shown = "".join(f"{1e3 * median:11.2f} ms" for median in found["medians"].values())
        print(f"{program:14}{shown}   {auto / min(others):11.2f}")
        print(*(f"  {line}" for line in found["told"]), sep="\n", flush=True)


if __name__ == "__main__":
    main()
