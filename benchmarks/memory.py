"""Peak memory of a training step on two stand-ins, where the weights dominate.

Each contender has a process whose CPU allocator is the GPU's (BFC), which counts bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side import contenders
from side_by_side.figures import Aim, terminal, write_json
from side_by_side.workers import Worker, closing

BATCH_SIZE = 8
_STEPS = 4


class Step:
    """A stack of Dense layers that trains by ``fit``, with its memory counted."""

    def __init__(
        self, *, num_devices: int, make_strategy: Callable[[list[str]], Any] | None = None
    ) -> None:
        devices = contenders.stand_ins(num_devices)
        self._strategy = make_strategy(devices) if make_strategy else None

    def peak(self, num_layers: int, width: int, optimizer: str) -> dict[str, int]:
        """Return bytes: of the weights, in use between steps, and at the peak of a step."""
        import keras
        import numpy as np
        import tensorflow as tf

        keras.utils.set_random_seed(1)
        with self._strategy.scope() if self._strategy else contextlib.nullcontext():
            hidden = [keras.layers.Dense(width, activation="relu") for _ in range(num_layers)]
            model = keras.Sequential([keras.Input((width,)), *hidden])
            model.compile(optimizer, "mse")
        x = np.random.default_rng(0).random((BATCH_SIZE * _STEPS, width), dtype="float32")
        # The first steps trace and make the optimizer's slots.
        model.fit(x, x, batch_size=BATCH_SIZE, verbose=0)
        tf.config.experimental.reset_memory_stats("CPU:0")
        model.fit(x, x, batch_size=BATCH_SIZE, verbose=0)
        used = tf.config.experimental.get_memory_info("CPU:0")
        return {
            "weights": sum(v.shape.num_elements() * 4 for v in model.trainable_variables),
            "resting": used["current"],
            "peak": used["peak"],
        }


def main(
    layers: Annotated[int, typer.Option(min=1)] = 6,
    width: Annotated[int, typer.Option(min=1)] = 2048,
    optimizer: Annotated[str, typer.Option()] = "adam",
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path("results/memory.json"),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if the aim is missed")] = False,
) -> None:
    """Compare the peak bytes of a training step."""
    layouts: dict[str, dict[str, Any]] = {
        "evener": {"num_devices": 2, "make_strategy": contenders.evener_even},
        "MirroredStrategy": {"num_devices": 2, "make_strategy": contenders.mirrored},
        "one device": {"num_devices": 1},
    }
    found: dict[str, dict[str, int]] = {}
    for name, settings in layouts.items():
        worker = Worker(Step, environment={"TF_CPU_ALLOCATOR_USE_BFC": "true"}, **settings)
        with closing(worker):
            found[name] = worker.call("peak", layers, width, optimizer)
    console = terminal()
    console.print(_table(found, f"{layers} Dense of {width} x {width}, {optimizer}, all devices"))
    ratio = found["evener"]["peak"] / found["MirroredStrategy"]["peak"]
    aim = Aim(what="evener's peak over MirroredStrategy's", wanted=0.7, got=ratio, at_least=False)
    console.print(str(aim), highlight=False)
    write_json(json, {"bytes": found}, [aim])
    if check and not aim.is_met:
        raise typer.Exit(1)


def _table(found: dict[str, dict[str, int]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("contender", no_wrap=True)
    for heading in ("between steps", "peak", "peak / weights", "peak / Mirrored"):
        table.add_column(heading, justify="right")
    for name, used in found.items():
        table.add_row(
            name,
            f"{used['resting'] / 2**20:,.0f} MiB",
            f"{used['peak'] / 2**20:,.0f} MiB",
            f"{used['peak'] / used['weights']:.2f}",
            f"{used['peak'] / found['MirroredStrategy']['peak']:.3f}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
