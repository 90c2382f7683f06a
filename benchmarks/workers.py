"""Two workers on one core each: samples per second beside the peers, in turns.

    python benchmarks/workers.py --rounds 3
    python benchmarks/workers.py --rounds 3 --slow        as root: the second core is at 0.4
    python benchmarks/workers.py --rounds 3 --batch-norm  BatchNormalization behind every layer

Each row is a pair of processes, one pinned to each of two cores, that train the same model:

    solo                      each alone on half of the batch: the limit is the sum
    evener                    a custom loop with `evener.distribute`, even shares
    evener measured           the same, with shares as measured
    evener no gate            updates begin before all sums have arrived: a death may tear a step
    evener per device         with --batch-norm: statistics of each device, as TensorFlow's strategy
    evener fit                Keras's `fit` under `evener.Strategy`
    evener collectives        the loop, and `fit`, by the ring of TensorFlow's collectives
    MultiWorkerMirrored       TensorFlow's strategy, a custom loop; its `fit` fails in Keras 3
    PyTorch solo, DDP         PyTorch, if ``--torch-python`` names a Python with it: twice one core
                              at half of the batch; DistributedDataParallel over gloo
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

KINDS = (
    "solo",
    "evener",
    "evener no gate",
    "evener collectives",
    "evener fit",
    "evener fit collectives",
    "MultiWorkerMirrored",
)
KINDS_IF_SLOW = ("solo", "evener", "evener measured", "MultiWorkerMirrored")
KINDS_OF_BATCH_NORM = ("solo", "evener", "evener per device", "MultiWorkerMirrored")
OWN_LOOPS = (
    "evener",
    "evener no gate",
    "evener per device",
    "evener measured",
    "evener collectives",
)
KINDS_OF_TORCH = {"PyTorch solo": 1, "PyTorch DDP": 2}
"""Number of processes."""
SECONDS_OF_TORCH = 3.0
WARM_UP = 4
WARM_UP_OF_SHARES = 60
"""Steps after which shares have settled."""
_NICE = -2
"""Priority of a process that leaves 0.4 of its core to another one that is always busy."""


def free_addresses(count: int) -> list[str]:
    """Return addresses of this machine whose ports are free now."""
    opened = [socket.socket() for _ in range(count)]
    for each in opened:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    return [f"127.0.0.1:{port}" for port in ports]


@contextlib.contextmanager
def busy_core(index: int) -> Iterator[None]:
    """Keep a core busy, so that 0.4 of it are left."""
    code = f"import os; os.sched_setaffinity(0, {{{sorted(os.sched_getaffinity(0))[index]}}})"
    code += f"; os.nice({_NICE})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield
            if process.poll() is not None:
                raise SystemExit("The core was not kept busy: --slow has to run as root.")
        finally:
            process.kill()


def run_pair(program: str, kind: str, options: Sequence[str] = ()) -> float:
    """Return the samples per second of two workers together.

    Args:
        program: Benchmark that is run with ``--worker`` and ``--kind``.
        kind: Contender; the workers of ``"solo"`` do not know of each other.
        options: Other words of its command line.
    """
    addresses = free_addresses(2)
    processes = []
    for index in range(2):
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        if kind != "solo":
            task = {"type": "worker", "index": index}
            environ["EVENER_EXCHANGE"] = "tensorflow" if kind.endswith("collectives") else "mesh"
            environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        words = [sys.executable, program, "--worker", str(index), "--kind", kind, *options]
        processes.append(
            subprocess.Popen(
                words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    rates = []
    for process in processes:
        output, problem = process.communicate(timeout=600)
        if process.returncode:
            raise SystemExit(problem[-3000:])
        rates.append(float(output.split()[-1]))
    return sum(rates) if kind == "solo" else statistics.mean(rates)


def begin_on_core(index: int, kind: str) -> Any:
    """Pin this process to a core; return TensorFlow's strategy, if the kind is that one."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[index]})
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    if kind != "MultiWorkerMirrored":
        return None
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def print_rates(
    rates: Mapping[str, Sequence[float]], batch_size: int, *, peer: str = "MultiWorkerMirrored"
) -> None:
    """Print the medians of all kinds, beside the limit and the peer."""
    limit, of_peer = (statistics.median(rates[kind]) for kind in ("solo", peer))
    print(f"batch {batch_size}, samples/s: median (least to most), of the limit, of {peer}")
    for kind, of_kind in rates.items():
        median = statistics.median(of_kind)
        spread = f"{min(of_kind):.0f} to {max(of_kind):.0f}"
        print(f"  {kind:22} {median:7.0f} ({spread}) {median / limit:5.2f} {median / of_peer:5.2f}")


def measure_torch(python: str, kind: str, batch_size: int) -> float:
    """Return the samples per second of two processes of PyTorch, or twice those of one."""
    folder = Path(__file__).parent
    count = KINDS_OF_TORCH[kind]
    words = [python, str(folder / "side_by_side/torch_process.py"), "mlp", str(count)]
    words += [str(SECONDS_OF_TORCH), str(batch_size * count // 2)]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found = json.loads(done.stdout.splitlines()[-1])
    return float(found["samples_per_second"]) * 2 / count


def work(kind: str, index: int, batch_size: int, num_steps: int, *, batch_norm: bool) -> None:
    """Train as one of two workers, and print the samples per second."""
    strategy = begin_on_core(index, kind)
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    is_fit = kind.startswith("evener fit")
    if kind == "evener collectives":
        import evener

        # The workers meet before the first tensor.
        evener.distribute(lambda x: x, devices="cpu:1", shares="even")
    if is_fit:
        import evener

        strategy = evener.Strategy(devices="cpu:1", shares="even")
    own_batch = batch_size // 2 if kind in ("solo", "MultiWorkerMirrored") else batch_size
    rng = np.random.default_rng(index if strategy is None and kind == "solo" else 0)
    x = rng.random((own_batch, 784), np.float32)
    y = rng.integers(0, 10, own_batch)

    def build() -> Any:
        layers = keras.layers
        hidden: list[Any] = []
        for _ in range(4):
            hidden.append(layers.Dense(1024, activation="relu"))
            hidden += [layers.BatchNormalization()] * batch_norm
        model = keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)])
        optimizer = keras.optimizers.Adam(1e-4)
        optimizer.build(model.trainable_variables)
        return model, optimizer

    if strategy is None:
        model, optimizer = build()
    else:
        with strategy.scope():
            model, optimizer = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if is_fit:
        model.compile(optimizer, loss, jit_compile=False)
        print(rate_of_fit(model, x, y, num_steps))
        return

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(
                keras.ops.sparse_categorical_crossentropy(
                    y, model(x, training=True), from_logits=True
                )
            )
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    run: Any
    if kind in OWN_LOOPS:
        import evener

        if kind == "evener no gate":
            from evener.partition import emit

            # No task is behind the gate, and no variable is kept for a step that is broken off.
            emit.closing_tasks = lambda *_: frozenset()
            emit.written_by = lambda *_: ()
        run = evener.distribute(
            step,
            devices="cpu:1",
            shares=None if kind == "evener measured" else "even",
            batch_norm="per_device" if kind == "evener per device" else None,
        )
    elif kind == "solo":
        run = tf.function(step)
    else:

        @tf.function
        def run(x: Any, y: Any) -> Any:
            return strategy.reduce("MEAN", strategy.run(step, (x, y)), None)

    given = tf.constant(x), tf.constant(y)
    for _ in range(WARM_UP_OF_SHARES if kind == "evener measured" else WARM_UP):
        float(run(*given))
    begin = time.perf_counter()
    for _ in range(num_steps):
        value = run(*given)
    float(value)
    seconds = time.perf_counter() - begin
    per_step = own_batch if kind == "solo" else batch_size
    print(num_steps * per_step / seconds)


def rate_of_fit(model: Any, x: Any, y: Any, num_steps: int) -> float:
    """Return the samples per second of Keras's `fit`, from the end of its first step.

    At its end, TensorFlow takes up to a second to close an iterator without end.
    """
    import keras
    import tensorflow as tf

    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    model.fit(data, steps_per_epoch=WARM_UP, verbose=0)
    ends: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
    )
    model.fit(data, steps_per_epoch=1 + num_steps, verbose=0, callbacks=[note])
    return num_steps * len(x) / (ends[-1] - ends[0])


def main() -> None:
    """Run all kinds in turns, and print the medians."""
    parser = argparse.ArgumentParser(description="Two one-core workers beside the peers.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--steps", type=int, default=0, help="steps to time; 0 for some seconds")
    parser.add_argument("--slow", action="store_true", help="keep the second core busy")
    parser.add_argument("--batch-norm", action="store_true", help="BatchNormalization layers")
    parser.add_argument("--torch-python", help="a Python with PyTorch and NumPy")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        given = options.kind, options.worker, options.batch[0], options.steps
        work(*given, batch_norm=options.batch_norm)
        return
    for batch_size in options.batch or (512, 4096):
        steps = options.steps or max(6, 16_384 // batch_size)
        kinds = KINDS_IF_SLOW if options.slow else KINDS
        kinds = KINDS_OF_BATCH_NORM if options.batch_norm else kinds
        kinds += tuple(KINDS_OF_TORCH) if options.torch_python else ()
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(options.rounds):
            for kind in kinds:
                with busy_core(1) if options.slow else contextlib.nullcontext():
                    if kind in KINDS_OF_TORCH:
                        found = measure_torch(options.torch_python, kind, batch_size)
                    else:
                        words = ["--batch", str(batch_size), "--steps", str(steps)]
                        words += ["--batch-norm"] * options.batch_norm
                        found = run_pair(__file__, kind, words)
                rates[kind].append(found)
        print_rates(rates, batch_size)


if __name__ == "__main__":
    main()
