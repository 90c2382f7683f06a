"""Growth with the number of workers: bytes, CPU seconds, time behind a death, coordinator.

    python benchmarks/growth.py --workers 2 4 8 16
    python benchmarks/growth.py --members 16 64 256 1000    the coordinator's state machine alone

Workers have one thread each, whatever cores there are: CPU seconds and bytes count, not wall time.
As root they have a loopback interface of their own, whose counter gives the bytes.

    mesh, tensorflow          the two carriers of evener
    MultiWorkerMirrored       TensorFlow's strategy, a custom loop
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from workers import free_addresses

CARRIERS = ("mesh", "tensorflow", "MultiWorkerMirrored")
BATCH_SIZE, WIDTH, WARM_UP = 512, 512, 5


def bytes_sent() -> int:
    """Return the bytes that all processes have sent over the loopback interface."""
    return int(Path("/proc/net/dev").read_text().split("lo:")[1].split()[8])


def work(carrier: str, index: int, count: int, num_steps: int) -> None:
    """Train as one of the workers; print a JSON object, and a line for each later step."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    strategy: Any = None
    if carrier == "MultiWorkerMirrored":
        kind = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=kind)
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    else:
        import evener
        from evener.workers import mesh

        # As on other machines: nobody reads the memory of another worker.
        mesh._LEAST_READ = sys.maxsize
        evener.distribute(lambda x: x, devices="cpu:1", shares="even")
    import keras
    import numpy as np

    def build() -> Any:
        layers = [keras.layers.Dense(WIDTH, "relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
        return model, optimizer

    keras.utils.set_random_seed(1)
    if strategy is None:
        model, optimizer = build()
    else:
        with strategy.scope():
            model, optimizer = build()
    size = BATCH_SIZE if strategy is None else BATCH_SIZE // count
    rng = np.random.default_rng(0)
    x, y = tf.constant(rng.random((size, 784), np.float32)), tf.constant(rng.integers(0, 10, size))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = keras.ops.sparse_categorical_crossentropy(y, model(x), from_logits=True)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    if strategy is None:
        run: Any = evener.distribute(step, devices="cpu:1", shares="even")
    else:

        @tf.function
        def run(x: Any, y: Any) -> Any:
            return strategy.reduce("MEAN", strategy.run(step, (x, y)), None)

    for _ in range(WARM_UP):
        float(run(x, y))
    cpu, sent = time.process_time(), bytes_sent()
    for _ in range(num_steps):
        float(run(x, y))
    found = {
        "cpu": (time.process_time() - cpu) / num_steps,
        "bytes": (bytes_sent() - sent) / num_steps,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "loss": float(run(x, y)),
    }
    print(json.dumps(found), flush=True)
    # Until the parent ends it; the last worker is killed first.
    while carrier != "MultiWorkerMirrored":
        float(run(x, y))
        print(time.time(), flush=True)


def measure(carrier: str, count: int, num_steps: int, folder: Path) -> dict[str, float]:
    """Return what each worker of a job takes, in the median, and the seconds behind a death."""
    cluster = {"worker": free_addresses(count)}
    processes, files = [], []
    for index in range(count):
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "EVENER_EXCHANGE": carrier}
        if carrier == "MultiWorkerMirrored":
            del environ["EVENER_EXCHANGE"]
        task = {"type": "worker", "index": index}
        environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        words = [sys.executable, __file__, "--worker", str(index), "--carrier", carrier]
        words += ["--workers", str(count), "--steps", str(num_steps)]
        files.append(folder / f"{carrier}-{count}-{index}")
        with files[-1].open("w") as output, files[-1].with_suffix(".err").open("w") as problem:
            processes.append(subprocess.Popen(words, env=environ, stdout=output, stderr=problem))

    def lines(index: int) -> list[str]:
        text = files[index].read_text()
        return text.split("\n")[:-1]

    try:
        least = 1 if carrier == "MultiWorkerMirrored" else 3
        while min(len(lines(index)) for index in range(count)) < least:
            if any(process.poll() for process in processes):
                raise SystemExit(files[0].with_suffix(".err").read_text()[-3000:])
            time.sleep(0.2)
        told = [json.loads(lines(index)[0]) for index in range(count)]
        seconds = 0.0
        if carrier != "MultiWorkerMirrored":
            processes[-1].send_signal(signal.SIGKILL)
            died = time.time()
            # A step that ends at once may have had all results before.
            while not (after := [t for t in map(float, lines(0)[1:]) if t > died + 0.02]):
                time.sleep(0.02)
            seconds = after[0] - died
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert len({each["loss"] for each in told}) == 1 or carrier == "MultiWorkerMirrored"
    found = {name: statistics.median(each[name] for each in told) for name in told[0]}
    return {**found, "death": seconds}


class Line:
    """A connection to the coordinator that counts what is sent to it."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def send(self, message: Any) -> None:
        """Count the bytes of a message as JSON."""
        self._counts["bytes"] += len(json.dumps(message))

    def end(self) -> None:
        """Close nothing."""


def coordinate(count: int) -> dict[str, float]:
    """Return CPU seconds and bytes of the coordinator of a job with so many members."""
    from evener.workers.membership import Membership
    from evener.workers.messages import Beat, Exchange, Hello, Stop

    counts = {"bytes": 0}
    own = Membership(
        count, heartbeat_seconds=10.0, start_seconds=300.0, patience_seconds=600.0, emit=id
    )
    lines: list[Any] = [Line(counts) for _ in range(count)]
    found: dict[str, float] = {}

    def timed(name: str, messages: Sequence[tuple[int, Any]], now: float) -> None:
        counts.update(bytes=0)
        begin = time.process_time()
        for index, message in messages:
            own.receive(lines[index], message, now)
        own.tick(now)
        found[f"{name} s"] = time.process_time() - begin
        found[f"{name} MB"] = counts["bytes"] / 1e6

    everyone = range(count)
    hellos = [
        Hello(
            index=k, count=count, incarnation=0, address=f"10.0.{k // 250}.{k % 250}:4711", facts={}
        )
        for k in everyone
    ]
    timed("first view", list(zip(everyone, hellos, strict=True)), 1.0)
    timed("beats of 10 s", [(k, Beat()) for _ in range(4) for k in everyone], 2.0)
    exchange = Exchange(view=1, key="a", value=0, timeout_seconds=60.0)
    timed("an exchange", [(k, exchange) for k in everyone], 3.0)
    begin = time.process_time()
    own.disconnected(lines[-1], 4.0, "its connection closed")
    timed("a death", [(k, Stop(view=1, done=7)) for k in everyone[:-1]], 4.0)
    found["a death s"] = time.process_time() - begin
    return found


def main() -> None:
    """Measure, and print a line for each job."""
    parser = argparse.ArgumentParser(description="What grows with the number of workers.")
    parser.add_argument("--workers", type=int, nargs="+", default=[])
    parser.add_argument("--members", type=int, nargs="+", default=[])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--carrier", help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.carrier, options.worker, options.workers[0], options.steps)
        return
    if options.workers and not os.environ.get("EVENER_OWN_LOOPBACK") and not os.geteuid():
        os.environ["EVENER_OWN_LOOPBACK"] = "1"
        inside = 'ip link set lo up; exec "$@"'
        words = ["unshare", "--net", "sh", "-c", inside, "sh", sys.executable, *sys.argv]
        os.execvp(words[0], words)
    with tempfile.TemporaryDirectory() as name:
        for count in options.workers:
            for carrier in CARRIERS:
                found = measure(carrier, count, options.steps, Path(name))
                print(
                    f"{count:3} workers, {carrier:20} CPU ms a step and worker "
                    f"{1e3 * found['cpu']:7.1f}, MB a step of all {found['bytes'] / 1e6:7.2f}, "
                    f"threads {found['threads']:.0f}, next step behind a death "
                    f"{found['death']:.2f} s",
                    flush=True,
                )
    for count in options.members:
        found = coordinate(count)
        print(f"{count:5} members:", ", ".join(f"{k} {v:.3f}" for k, v in found.items()))


if __name__ == "__main__":
    main()
