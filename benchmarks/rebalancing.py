"""Evening: one of two devices slows down to 40 % while training.

      quiet ──────────► slowed ─────────────────────────► quiet again
      T0: steps/s       even shares: 0.4 T0               T0
                        rebalanced: (1 + 0.4) / 2 T0, the ideal

The slowed device has real work to do besides: small matrix products before its replica, in
proportion to the replica's samples, which take 1.5 times as long as the samples do.
"""

from __future__ import annotations

import contextlib
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side import contenders
from side_by_side.figures import Aim, spread, terminal, write_json
from side_by_side.problems import SEED
from side_by_side.workers import Worker, closing

SPEED_LEFT = 0.4
SLOW_REPLICA = 1
WITHIN_STEPS = 20
_WARM, _QUIET, _SLOWED = 30, 40, 60
_BATCH_SIZE, _WIDTH, _CLASSES = 512, 512, 10
_PRODUCT = 96


def phases(repeats: int) -> list[tuple[str, int]]:
    """Return the phases of a run with their numbers of steps."""
    cycle = [("slowed", _SLOWED), ("quiet", _QUIET)]
    return [("warm", _WARM), ("quiet", _QUIET), *(cycle * repeats)]


class Training:
    """One ``fit`` over all phases, with every step timed.

    The activations are smooth and the steps small, so that the rounding of one step does
    not grow over hundreds.
    """

    def __init__(self, *, num_devices: int, rebalanced: bool) -> None:
        devices = contenders.stand_ins(num_devices)
        self._strategy = contenders.evener_measured(devices) if rebalanced else None

    def train(self, plan: list[tuple[str, int]]) -> dict[str, Any]:
        """Train through the phases; return the steps' seconds, the weights, the events."""
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(1)
        with self._strategy.scope() if self._strategy else contextlib.nullcontext():
            layers = keras.layers
            hidden = [layers.Dense(_WIDTH, activation="tanh") for _ in range(6)]
            model = keras.Sequential([keras.Input((_WIDTH,)), *hidden, layers.Dense(_CLASSES)])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss)
        clock = contenders.step_clock()
        callbacks: list[Any] = [clock]
        if self._strategy is not None:
            slowing = _slow_down(model, self._strategy)
            callbacks.append(_switch(plan, slowing, clock, self._strategy))
        num_steps = sum(num for _, num in plan)
        dataset = tf.data.Dataset.from_tensor_slices(_data()).repeat()
        dataset = dataset.batch(_BATCH_SIZE, drop_remainder=True).prefetch(2)
        model.fit(dataset, steps_per_epoch=num_steps, verbose=0, callbacks=callbacks)
        return {
            "seconds": [b.wall - a.wall for a, b in pairwise([clock.begin, *clock.ends])],
            "weights": [w for w in model.get_weights()],
            "events": [
                (event.step, str(event)) for event in getattr(self._controller, "events", ())
            ],
            "shares": getattr(callbacks[-1], "shares", []),
        }

    @property
    def _controller(self) -> Any:
        return getattr(self._strategy, "share_controller", None)


def _data() -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((16 * _BATCH_SIZE, _WIDTH), dtype="float32")
    return x, rng.integers(0, _CLASSES, len(x)).astype("int32")


class _Slowing:
    """Work on the slow replica's device, proportional to its samples."""

    def __init__(self) -> None:
        import tensorflow as tf

        with tf.device("CPU:0"):
            self.products_per_sample = tf.Variable(0.0, trainable=False)

    def before_part(self, replica: int, num_samples: Any) -> Any:
        import tensorflow as tf

        if replica != SLOW_REPLICA:
            return tf.zeros([])
        wanted = tf.cast(num_samples, tf.float32) * self.products_per_sample
        return multiply(tf.cast(wanted, tf.int32))


def multiply(num_products: Any) -> Any:
    """Multiply small matrices so many times; each product waits for the one before."""
    import tensorflow as tf

    # Orthogonal in every plane, so that powers neither grow nor vanish.
    turn = tf.reverse(tf.eye(_PRODUCT), [1])
    _, product = tf.while_loop(
        lambda i, _: i < num_products,
        lambda i, product: (i + 1, product @ turn),
        [tf.constant(0), tf.fill([_PRODUCT, _PRODUCT], 0.5)],
        parallel_iterations=1,
    )
    return tf.reduce_sum(product)


def seconds_per_product(device: str) -> float:
    """Measure the work on a device; the least of several times, which is undisturbed."""
    import time

    import tensorflow as tf

    @tf.function
    def work(num_products: Any) -> Any:
        with tf.device(device):
            return multiply(num_products)

    num_products = tf.constant(1000)
    work(num_products)
    times = []
    for _ in range(15):
        begin = time.perf_counter()
        float(work(num_products))
        times.append(time.perf_counter() - begin)
    return min(times) / 1000


def _slow_down(model: Any, strategy: Any) -> _Slowing:
    slowing = _Slowing()
    model.make_train_function()
    strategy.share_controller.before_part = slowing.before_part
    return slowing


def _switch(plan: list[tuple[str, int]], slowing: _Slowing, clock: Any, strategy: Any) -> Any:
    """Return the callback that slows the device down and lets it go again."""
    import keras

    per_product = seconds_per_product(f"CPU:{SLOW_REPLICA}")
    phase_of_step = [name for name, num in plan for _ in range(num)]

    class Switch(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.shares: list[list[float]] = []
            self.per_sample: list[float] = []
            self.amount = 0.0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            now = phase_of_step[batch]
            before = phase_of_step[batch - 1] if batch else now
            if now == "slowed" and before == "quiet":
                own = statistics.median(self.per_sample)
                self.amount = (1 / SPEED_LEFT - 1) * own / per_product
            if now != before:
                slowing.products_per_sample.assign(self.amount if now == "slowed" else 0.0)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.shares.append([round(share, 4) for share in strategy.shares])
            if phase_of_step[batch] == "quiet":
                samples, seconds = strategy.share_controller.last_steps()[SLOW_REPLICA][-1]
                self.per_sample.append(seconds / max(samples, 1.0))

    return Switch()


def measure(plan: list[tuple[str, int]], found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return for every time the device slowed down what became of the throughput."""
    rates = [1.0 / seconds for seconds in found["seconds"]]
    begins, at = [], 0
    for _, num in plan:
        begins.append(at)
        at += num
    rows = []
    for k, (name, num) in enumerate(plan):
        if name != "slowed":
            continue
        begin = begins[k]
        before = statistics.median(rates[begin - _QUIET // 2 : begin])
        after = statistics.median(rates[begins[k + 1] + _QUIET // 2 : begins[k + 1] + _QUIET])
        ideal = (before + after) / 2 * (1 + SPEED_LEFT) / 2
        at_20 = rates[begin + WITHIN_STEPS : begin + num]
        changes = [step - begin for step, _ in found["events"] if begin < step <= begin + num]
        rows.append(
            {
                "quiet": [before, after],
                "first": statistics.median(rates[begin : begin + 4]),
                "rebalanced": statistics.median(at_20),
                "ideal": ideal,
                "of_ideal": statistics.median(at_20) / ideal,
                "shares": found["shares"][begin + num - 1],
                "changed_after_steps": changes,
            }
        )
    return rows


def largest_difference(found: dict[str, Any], reference: dict[str, Any]) -> float:
    """Return the largest difference of weights, relative to each tensor's largest entry."""
    return max(
        float(abs(a - b).max() / max(abs(b).max(), 1e-3))
        for a, b in zip(found["weights"], reference["weights"], strict=True)
    )


def main(
    repeats: Annotated[int, typer.Option(min=1, help="how often the device slows down")] = 5,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/rebalancing.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Slow one device down to 40 % in the middle of training, and see the shares follow."""
    plan = phases(repeats)
    console = terminal()
    results = []
    for num_devices, rebalanced in ((2, True), (1, False)):
        worker = Worker(Training, num_devices=num_devices, rebalanced=rebalanced)
        with closing(worker):
            results.append(worker.call("train", plan))
    found, reference = results
    rows = measure(plan, found)
    of_ideal = spread([row["of_ideal"] for row in rows])
    difference = largest_difference(found, reference)
    console.print(_table(rows))
    for _, event in found["events"]:
        console.print(event, highlight=False, soft_wrap=True)
    aims = [
        Aim(
            what=f"throughput {WITHIN_STEPS} steps after slowing, of the ideal",
            wanted=0.9,
            got=of_ideal.median,
        ),
        Aim(
            what="weights against one device, relative difference in 1e-5",
            wanted=1.0,
            got=difference * 1e5,
            at_least=False,
        ),
    ]
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    figures = {"slowed": rows, "events": found["events"], "difference": difference}
    write_json(json, {**figures, "step_seconds": found["seconds"]}, aims)
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="steps/s, medians", title_justify="left")
    for heading in (
        "quiet before, after",
        "first 4 slowed",
        f"after {WITHIN_STEPS}",
        "ideal",
        "of ideal",
        "shares",
        "changed after steps",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            ", ".join(f"{rate:.1f}" for rate in row["quiet"]),
            f"{row['first']:.1f}",
            f"{row['rebalanced']:.1f}",
            f"{row['ideal']:.1f}",
            f"{row['of_ideal']:.3f}",
            " ".join(f"{share:.3f}" for share in row["shares"]),
            ", ".join(str(step) for step in row["changed_after_steps"]),
        )
    return table


if __name__ == "__main__":
    typer.run(main)
