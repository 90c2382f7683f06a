"""Workers that are killed: `evener launch` beside MultiWorkerMirroredStrategy with restarts.

    python benchmarks/deaths.py --kills 4

The same model is trained by three workers, and one of them is killed by SIGKILL at the same steps:

    evener                a script for one device, under `evener launch`: a death is replaced
    MultiWorkerMirrored   a custom loop with a backup at the end of each epoch, as Keras's
                          BackupAndRestore makes it; after a death all workers are started again

For each: seconds from a death until training is further than it was before, and how far the
weights are from those of an undisturbed run; of the peer also the steps that are computed again. Of
evener that is at most the step in flight: survivors go on behind their last step, and a replacement
gets results instead of computing them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from workers import free_addresses

NUM_WORKERS = 3
BATCH = 96
NUM_SAMPLES = 96 * 60
NUM_EPOCHS = 30
_LONGEST_SECONDS = 1200.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Cost of a run with deaths.

    Attributes:
        weights: Weights at its end.
        num_again: Number of steps that were computed again.
        seconds: Seconds after each death until training was further than before.
    """

    weights: list[np.ndarray]
    num_again: int
    seconds: list[float]


def train(kind: str, folder: Path) -> None:
    """Train as one worker, or as the only process.

    Args:
        kind: "plain" for a script of one device, "mirrored" for TensorFlow's strategy.
        folder: Folder for the steps, the backup and the weights.
    """
    import tensorflow as tf

    strategy: Any = tf.distribute.get_strategy()
    if kind == "mirrored":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    import keras

    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_SAMPLES, 32)).astype(np.float32)
    y = (x @ rng.normal(size=(32, 10))).argmax(1)
    data: Any = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(NUM_SAMPLES, seed=1)
    data = data.batch(BATCH, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = data.with_options(options)
    with strategy.scope():
        layers = keras.layers
        # No kinks, at which rounding decides.
        hidden = [layers.Dense(256, activation="tanh"), layers.Dropout(0.1)]
        model = keras.Sequential([keras.Input((32,)), *hidden, layers.Dense(10)])
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            found = model(x, training=True)
            losses = keras.ops.sparse_categorical_crossentropy(y, found, from_logits=True)
            loss = tf.reduce_sum(losses) / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run: Any = tf.function(step)
    if kind == "mirrored":
        data = strategy.experimental_distribute_dataset(data)

        @tf.function
        def run(x: Any, y: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(step, (x, y)), None)

    variables = [*model.variables, *optimizer.variables]
    backup = folder / "backup.npz"
    first_epoch = 0
    if kind == "mirrored" and backup.exists():
        first_epoch, *values = np.load(backup).values()
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    number = int(first_epoch) * (NUM_SAMPLES // BATCH)
    is_first = kind == "plain" or strategy.cluster_resolver.task_id == 0
    with (folder / f"steps-{os.getpid()}.jsonl").open("w", buffering=1) as file:
        for epoch in range(int(first_epoch), NUM_EPOCHS):
            for batch in data:
                float(run(*batch))
                number += 1
                file.write(f"{json.dumps([number, time.time()])}\n")
            if kind == "mirrored" and is_first:
                whole = folder / "whole.npz"
                np.savez(whole, epoch + 1, *map(np.asarray, variables))
                whole.replace(backup)
    if is_first:
        np.savez(folder / "weights.npz", *model.get_weights())


def steps_in(folder: Path) -> list[tuple[int, float]]:
    """Return the steps that all processes have finished: number and time, in order of time."""
    lines = [
        line
        for path in folder.glob("steps-*.jsonl")
        for line in path.read_text().splitlines(keepends=True)
    ]
    found = [tuple(json.loads(line)) for line in lines if line.endswith("\n")]
    return sorted(found, key=lambda step: step[1])


class EvenerJob:
    """A job of `evener launch`, which replaces workers by itself."""

    def __init__(self, folder: Path) -> None:
        words = ["-m", "evener", "launch", "--workers", str(NUM_WORKERS), "--devices", "cpu:1"]
        words += ["--restarts", "100", "--logs", str(folder / "logs"), __file__]
        self._process = subprocess.Popen(
            [sys.executable, *words, "--worker", "plain", "--folder", str(folder)],
            stdout=subprocess.DEVNULL,
        )

    def is_running(self) -> bool:
        """Return whether it goes on; raise if it has failed."""
        code = self._process.poll()
        if code:
            raise SystemExit(f"evener launch has ended with {code}")
        return code is None

    def end(self) -> None:
        """End all its processes."""
        self._process.terminate()
        self._process.wait()

    def kill(self, number: int) -> None:
        """Kill a worker."""
        for path in Path("/proc").iterdir():
            if not path.name.isdecimal():
                continue
            try:
                words = (path / "cmdline").read_bytes().decode().split("\0")
                environ = (path / "environ").read_bytes().decode().split("\0")
            except (OSError, UnicodeDecodeError):
                continue
            jobs = [line for line in environ if line.startswith("EVENER_JOB=")]
            is_worker = "run" in words and __file__ in words and jobs
            if is_worker and json.loads(jobs[0][11:])["index"] == number:
                os.kill(int(path.name), signal.SIGKILL)


class MirroredJob:
    """Workers of TensorFlow's strategy, which are all started again when one of them dies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._start()

    def _start(self) -> None:
        addresses = free_addresses(NUM_WORKERS)
        self._processes = []
        for index in range(NUM_WORKERS):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environ = {**os.environ, "TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "3"}
            words = [sys.executable, __file__, "--worker", "mirrored"]
            words += ["--folder", str(self._folder)]
            self._processes.append(
                subprocess.Popen(
                    words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )

    def is_running(self) -> bool:
        """Return whether it goes on; start all workers again if one has died."""
        codes = [process.poll() for process in self._processes]
        if any(codes):
            self.end()
            self._start()
        return any(code is None or code for code in codes)

    def end(self) -> None:
        """End all its processes."""
        for process in self._processes:
            process.kill()
            process.wait()

    def kill(self, number: int) -> None:
        """Kill a worker."""
        self._processes[number].kill()


def disturbed(job_type: Any, folder: Path, deaths: list[tuple[int, int]]) -> Outcome:
    """Run a job, and kill a worker at each of some steps.

    Args:
        job_type: Type of the job.
        folder: Folder for its files.
        deaths: The steps, each with the number of the worker.
    """
    folder.mkdir()
    job = job_type(folder)
    left = list(deaths)
    killed: list[tuple[int, float]] = []
    end = time.monotonic() + _LONGEST_SECONDS
    try:
        while job.is_running():
            if time.monotonic() > end:
                raise SystemExit(f"{folder.name} does not come to its end")
            newest = max((step for step, _ in steps_in(folder)), default=0)
            if left and newest >= left[0][0]:
                job.kill(left.pop(0)[1])
                killed.append((newest, time.time()))
            time.sleep(0.02)
    finally:
        job.end()
    steps = steps_in(folder)
    # The first step to end may have had all it needs before the death.
    seconds = [
        min(at - when for n, at in steps if n > newest + 1 and at > when) for newest, when in killed
    ]
    weights = list(np.load(folder / "weights.npz").values())
    return Outcome(weights=weights, num_again=num_again(folder), seconds=seconds)


def num_again(folder: Path) -> int:
    """Return the number of steps that all workers of the peer have computed again."""
    newest = again = 0
    for number, _ in steps_in(folder):
        again += number < newest
        newest = max(newest, number)
    return again // NUM_WORKERS


def largest_difference(weights: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return the largest difference of weights, relative to the largest of a variable."""
    return max(
        float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(weights, expected, strict=True)
    )


def main() -> None:
    """Run both with the same deaths, and print what they cost."""
    parser = argparse.ArgumentParser(description="Killed workers, beside the peer.")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        train(options.worker, options.folder)
        return
    rng = random.Random(options.seed)
    num_steps = NUM_EPOCHS * NUM_SAMPLES // BATCH
    places = sorted(rng.sample(range(20, num_steps - 20), options.kills))
    deaths = [(step, rng.randrange(NUM_WORKERS)) for step in places]
    print(f"{NUM_WORKERS} workers, {num_steps} steps, killed at", ", ".join(map(str, places)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = folder / "one device"
        alone.mkdir()
        words = [sys.executable, __file__, "--worker", "plain", "--folder", str(alone)]
        subprocess.run(words, check=True)
        expected = {"evener": list(np.load(alone / "weights.npz").values())}
        undisturbed = disturbed(MirroredJob, folder / "undisturbed", [])
        expected["MultiWorkerMirrored"] = undisturbed.weights
        for kind, job_type in (("evener", EvenerJob), ("MultiWorkerMirrored", MirroredJob)):
            outcome = disturbed(job_type, folder / kind, deaths)
            off = largest_difference(outcome.weights, expected[kind])
            again = f", {outcome.num_again} steps again" if job_type is MirroredJob else ""
            print(
                f"{kind:20} {off:.1e} off, seconds until it is further: "
                f"median {statistics.median(outcome.seconds):.1f}, "
                f"most {max(outcome.seconds):.1f}{again}"
            )


if __name__ == "__main__":
    main()
