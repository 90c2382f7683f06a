"""Step times of ``evener run --plan auto`` against one device and even shares, on small programs.

The plans are those that ``--plan auto`` finds and tries. One process trains the program in three
ways in turns, epoch by epoch, so that a busy machine slows all of them: on one device, with even
shares on two CPU devices, and with the plan that stays after the trial. Medians over epochs; some
three minutes on an idle machine::

    .venv/bin/python benchmarks/tried_plans.py
    .venv/bin/python benchmarks/tried_plans.py --programs mlp,lstm --epochs 15
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_STEPS = {"mlp": 200, "wide": 10, "convolutions": 10, "lstm": 20}


def build(program: str) -> tuple[Any, Any]:
    """Return a compiled model and its data, a batch without end."""
    import keras
    import numpy as np
    import tensorflow as tf

    layers = keras.layers
    body, shape = {
        "mlp": ([layers.Dense(64, "relu")], (16, 32)),
        "wide": ([layers.Dense(1024, "relu") for _ in range(3)], (256, 256)),
        "convolutions": (
            [
                *(layers.Conv2D(32, 3, activation="relu") for _ in range(3)),
                layers.GlobalAveragePooling2D(),
            ],
            (32, 24, 24, 3),
        ),
        "lstm": ([layers.LSTM(64)], (64, 20, 16)),
    }[program]
    model = keras.Sequential([keras.Input(shape[1:]), *body, layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    data = tf.data.Dataset.from_tensors((x, x.reshape(len(x), -1)[:, :1]))
    return model, data.repeat()


def train(program: str) -> None:
    """Train as a script does, for the planner."""
    model, data = build(program)
    model.fit(data, steps_per_epoch=NUM_STEPS[program], verbose=0)


def compare(program: str, texts: list[str], start: int, num_epochs: int) -> None:
    """Train in three ways in turns, and print the medians as JSON."""
    import evener
    from evener import Plan

    evener.use_devices("cpu:2")
    plans = [Plan.from_json(text) for text in texts]
    told: list[str] = []
    tried = evener.Strategy(plans[start], verify=False)
    tried.try_plans(plans, told.append)
    ways = {
        "one device": evener.Strategy(Plan.data_parallel(["cpu:0"]), verify=False),
        "even shares": evener.Strategy(Plan.data_parallel(["cpu:0", "cpu:1"]), verify=False),
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
    for _ in range(num_epochs + 1):
        for way, epoch in epochs.items():
            begin = time.perf_counter()
            epoch()
            seconds[way].append((time.perf_counter() - begin) / NUM_STEPS[program])
    # The first epoch traces.
    medians = {way: statistics.median(times[1:]) for way, times in seconds.items()}
    print(json.dumps({"medians": medians, "told": told}))


def planned(program: str) -> tuple[list[str], int]:
    """Return the plans that ``--plan auto`` tries, as JSON, and the number of the first."""
    from evener.planner.simplest import plans_to_try
    from evener.run.script import read
    from evener.subprocess.script_plan import plan_script

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
    print(f"{'program':14}{'one device':>14}{'even shares':>14}{'--plan auto':>14}   auto / best")
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
