"""Cost of a step for the host on 1 to 16 devices: nothing but overhead.

A small model on stand-ins that share the cores, so that next to nothing is computed: seconds of
tracing, nodes of the graph, milliseconds of a step and peak memory of the process, by the number of
devices. The owners of the variables are spread over all of them.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side.contenders import stand_ins
from side_by_side.figures import Aim, terminal, write_json
from side_by_side.workers import Worker, closing

NUM_LAYERS, WIDTH, BATCH = 8, 16, 64
MOST_GROWTH = 1.25
"""Most that one more device may cost between 8 and 16 devices, relative to between 2 and 8."""


class SmallModel:
    """A model on some devices, which is traced and run.

    Args:
        num_devices: Number of logical CPUs; 0 for plain TensorFlow on one device.
    """

    def __init__(self, *, num_devices: int) -> None:
        # As TensorFlow does by itself: with a thread for each device, threads would take turns on
        # the cores, which costs more than the step.
        count = max(1, num_devices)
        stand_ins(count, num_threads=min(count, len(os.sched_getaffinity(0))))
        self._num_devices = num_devices

    def measure(self, num_steps: int) -> dict[str, float]:
        """Return the seconds of tracing, nodes, milliseconds of a step and MiB.

        Args:
            num_steps: Number of steps to time.
        """
        import keras
        import tensorflow as tf

        import evener

        keras.utils.set_random_seed(1)
        strategy: Any = tf.distribute.get_strategy()
        if self._num_devices:
            devices = [f"cpu:{k}" for k in range(self._num_devices)]
            strategy = evener.Strategy(devices=devices, shares="even", verify=False)
        with strategy.scope():
            hidden = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(NUM_LAYERS)]
            model = keras.Sequential([keras.Input((WIDTH,)), *hidden, keras.layers.Dense(1)])
            optimizer = keras.optimizers.Adam()
            optimizer.build(model.trainable_variables)

        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        run = tf.function(lambda x: strategy.run(step, (x,)))
        x = tf.random.normal([BATCH, WIDTH])
        begin = time.perf_counter()
        definition = run.get_concrete_function(x).graph.as_graph_def()
        traced = time.perf_counter() - begin
        run(x)
        first = time.perf_counter() - begin
        nodes = len(definition.node) + sum(len(f.node_def) for f in definition.library.function)
        seconds = []
        for _ in range(num_steps):
            before = time.perf_counter()
            float(run(x))
            seconds.append(time.perf_counter() - before)
        return {
            "tracing_seconds": traced,
            "first_step_seconds": first,
            "num_nodes": nodes,
            "step_ms": 1000 * statistics.median(seconds),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    steps: Annotated[int, typer.Option(min=1, help="steps to time in each round")] = 100,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/many_devices.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if the aim is missed")] = False,
) -> None:
    """Measure 1 to 16 devices in turns, and print the medians."""
    counts = (0, 1, 2, 4, 8, 16)
    found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count in counts:
            worker = Worker(SmallModel, num_devices=count)
            with closing(worker):
                found[count].append(worker.call("measure", steps))
    medians = {
        count: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for count, runs in found.items()
    }
    table = Table(
        title=f"{NUM_LAYERS + 1} layers of {WIDTH}, Adam, batch {BATCH}", title_justify="left"
    )
    table.add_column("devices", no_wrap=True)
    for name in ("tracing, s", "first step, s", "nodes", "step, ms", "peak, MiB"):
        table.add_column(name, justify="right")
    for count, of_count in medians.items():
        tracing, first, nodes, step, peak = of_count.values()
        table.add_row(
            str(count) if count else "plain TensorFlow",
            f"{tracing:.2f}",
            f"{first:.2f}",
            f"{nodes:.0f}",
            f"{step:.2f}",
            f"{peak:.0f}",
        )
    console = terminal()
    console.print(table)
    aims = []
    for name in ("tracing_seconds", "num_nodes", "step_ms"):
        early = (medians[8][name] - medians[2][name]) / 6
        late = (medians[16][name] - medians[8][name]) / 8
        console.print(f"{name}: {early:.3g} for one more device up to 8, {late:.3g} up to 16")
        aims.append(
            Aim(
                what=f"growth of {name}",
                wanted=MOST_GROWTH,
                got=late / early,
                at_least=False,
            )
        )
    for aim in aims:
        console.print(str(aim), highlight=False)
    write_json(json, {"medians": {str(k): v for k, v in medians.items()}}, aims)
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
