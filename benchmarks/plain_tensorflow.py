"""Cost of plain TensorFlow in a process that has used evener, beside one that has not.

Both do the same work without evener, in turns: eager operations, gradients on a tape, tracing of a
function, and a step of Keras's ``fit`` without a strategy.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side.contenders import stand_ins
from side_by_side.figures import Aim, paired, terminal, write_json
from side_by_side.workers import Worker, closing

USED, PLAIN = "has used evener", "plain TensorFlow"
MOST = 1.01


class Program:
    """Work without evener.

    Args:
        has_used_evener: Whether a model was trained and a step run before by evener; else by
            plain TensorFlow, so that both processes hold about as many objects.
    """

    def __init__(self, *, has_used_evener: bool) -> None:
        stand_ins(2)
        _train(by_evener=has_used_evener)
        self._work = _work()

    def names(self) -> list[str]:
        """Return what there is to do."""
        return list(self._work)

    def seconds(self, name: str, times: int) -> float:
        """Do something several times; return the seconds of all."""
        work = self._work[name]
        begin = time.perf_counter()
        for _ in range(times):
            work()
        return time.perf_counter() - begin


def _train(*, by_evener: bool) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    scope: Any = contextlib.nullcontext()
    function: Any = tf.function
    if by_evener:
        import evener

        scope = evener.Strategy(devices=["cpu:0", "cpu:1"]).scope()
        function = evener.distribute(devices=["cpu:0", "cpu:1"])
    with scope:
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile("adam", "mse")
    x = np.ones((16, 8), "float32")
    model.fit(x, x[:, :4], verbose=0)
    function(lambda batch: tf.reduce_mean(batch))(tf.constant(x))


def _work() -> dict[str, Callable[[], Any]]:
    import keras
    import numpy as np
    import tensorflow as tf

    a, b = tf.random.normal([16, 16]), tf.Variable(tf.random.normal([16, 16]))
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    dense = keras.layers.Dense(16)
    dense.build((None, 16))
    x = np.ones((32, 16), "float32")
    data = tf.data.Dataset.from_tensors((x, x[:, :1])).repeat()

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(a @ b) * a)
        return tape.gradient(loss, b)

    def trace() -> Any:
        def step(value: Any) -> Any:
            for _ in range(10):
                value = tf.tanh(value @ b) + value
            return value

        return tf.function(step).get_concrete_function(a)

    return {
        "eager operations": lambda: tf.tanh(a @ b) + a,
        "a layer, eagerly": lambda: dense(a),
        "gradients on a tape": gradients,
        "tracing a function": trace,
        "100 steps of fit": lambda: model.fit(data, steps_per_epoch=100, verbose=0),
    }


def main(
    rounds: Annotated[int, typer.Option(min=1, help="turns of each")] = 41,
    seconds: Annotated[float, typer.Option(min=0.01, help="length of a turn")] = 0.15,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/plain_tensorflow.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Compare plain TensorFlow with itself, after evener was used."""
    team = {
        USED: Worker(Program, has_used_evener=True),
        PLAIN: Worker(Program, has_used_evener=False),
    }
    console = terminal()
    figures: dict[str, dict[str, list[float]]] = {}
    with closing(*team.values()):
        for name in team[USED].call("names"):
            for worker in team.values():
                worker.call("seconds", name, 3)
            times = max(1, round(3 * seconds / team[PLAIN].call("seconds", name, 3)))
            figures[name] = {who: [] for who in team}
            for turn in range(rounds):
                for who in sorted(team, reverse=bool(turn % 2)):
                    taken = team[who].call("seconds", name, times)
                    figures[name][who].append(taken / times)
    table = Table(title="seconds of plain TensorFlow", title_justify="left")
    for heading in ("work", PLAIN, USED, "ratio of neighbours, median"):
        table.add_column(heading, justify="left" if heading == "work" else "right")
    aims = []
    for name, found in figures.items():
        ratio = paired(found[USED], found[PLAIN]).median
        medians = (f"{statistics.median(found[who]) * 1e6:,.0f} µs" for who in (PLAIN, USED))
        table.add_row(name, *medians, f"{ratio:.4f}")
        aims.append(Aim(what=f"{name}, ratio", wanted=MOST, got=ratio, at_least=False))
    console.print(table)
    for aim in aims:
        console.print(str(aim), highlight=False)
    write_json(json, {"seconds": figures}, aims)
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
