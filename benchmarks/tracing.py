"""Seconds until the first step of a deep model in stages is over, and what they go to.

A transformer of 48 narrow blocks in 4 stages, 32 micro-batches, 4 of them in flight: next to
nothing to compute, but a step of hundreds of calls.
"""

from __future__ import annotations

import contextlib
import cProfile
import pstats
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side.chains import plan_of, transformer
from side_by_side.contenders import stand_ins
from side_by_side.figures import Aim, terminal, write_json
from side_by_side.problems import make_loss
from side_by_side.workers import Worker, closing

WIDTH, HEADS, LENGTH, VOCABULARY = 64, 4, 32, 256
MOST_SECONDS = 45.0
_SAMPLES_EACH = 1
PLAIN = "Keras on one device"


class FirstStep:
    """A model that takes its first step, timed part by part.

    Args:
        num_stages: One logical CPU for each; 0 for Keras on one device, without evener.
    """

    def __init__(self, *, num_stages: int) -> None:
        stand_ins(max(1, num_stages))
        self._devices = [f"cpu:{k}" for k in range(num_stages)]

    def take(self, num_blocks: int, optimizer: str, profile: str, **order: int) -> dict[str, Any]:
        """Return the seconds of each part.

        Args:
            num_blocks: Number of blocks of the transformer.
            optimizer: Name of the optimizer.
            profile: File for the profile of the tracing; none if empty.
            **order: Arguments of `plan_of`.
        """
        import keras
        import numpy as np
        import tensorflow as tf

        import evener

        begin = time.perf_counter()
        keras.utils.set_random_seed(1)
        chain = transformer(
            num_blocks=num_blocks,
            width=WIDTH,
            num_heads=HEADS,
            length=LENGTH,
            vocabulary=VOCABULARY,
        )
        is_plain = not self._devices
        plan = None if is_plain else plan_of(chain, self._devices, **order)
        with contextlib.nullcontext() if plan is None else evener.Strategy(plan).scope():
            model = chain.build()
            model.compile(optimizer, make_loss())
        num_samples = _SAMPLES_EACH * order["num_micro_batches"]
        rng = np.random.default_rng(0)
        text = rng.integers(0, VOCABULARY, (num_samples, LENGTH + 1)).astype("int32")
        batches = tf.data.Dataset.from_tensors((text[:, :-1], text[:, 1:]))
        seconds = {"building": time.perf_counter() - begin}
        profiler = cProfile.Profile()
        if profile:
            profiler.enable()
        for part in ("the first step", "a later step"):
            before = time.perf_counter()
            model.fit(batches, verbose=0)
            seconds[part] = time.perf_counter() - before
            profiler.disable()
        if profile:
            with Path(profile).open("w") as text_file:
                stats = pstats.Stats(profiler, stream=text_file)
                stats.sort_stats("cumulative").print_stats(70)
                stats.sort_stats("tottime").print_stats(50)
        return {"later_step_seconds": seconds.pop("a later step"), "seconds": seconds}


def main(
    blocks: Annotated[int, typer.Option(min=1, help="a multiple of the stages")] = 48,
    stages: Annotated[int, typer.Option(min=2)] = 4,
    micro_batches: Annotated[int, typer.Option(min=1)] = 32,
    in_flight: Annotated[int, typer.Option(min=1)] = 4,
    optimizer: Annotated[str, typer.Option()] = "adam",
    profile: Annotated[str, typer.Option(help="file for the profile of the first step")] = "",
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path("results/tracing.json"),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if the aim is missed")] = False,
) -> None:
    """Time the way to the end of the first step."""
    order = {"num_micro_batches": micro_batches, "in_flight": in_flight}
    both = {}
    for name, num_stages in (("evener", stages), (PLAIN, 0)):
        worker = Worker(FirstStep, num_stages=num_stages)
        with closing(worker):
            file = profile if num_stages else ""
            both[name] = worker.call("take", blocks, optimizer, file, **order)
    found, plain = both["evener"], both[PLAIN]
    console = terminal()
    title = f"{blocks} blocks, {stages} stages, {micro_batches} micro-batches, {optimizer}"
    table = Table(title=title, title_justify="left")
    table.add_column("part", no_wrap=True)
    table.add_column("evener, seconds", justify="right")
    table.add_column(f"{PLAIN}, seconds", justify="right")
    for part, seconds in found["seconds"].items():
        table.add_row(part, f"{seconds:.1f}", f"{plain['seconds'][part]:.1f}")
    total = sum(found["seconds"].values())
    table.add_row("all", f"{total:.1f}", f"{sum(plain['seconds'].values()):.1f}")
    later = (run["later_step_seconds"] for run in (found, plain))
    table.add_row("a later step", *(f"{seconds:.2f}" for seconds in later))
    console.print(table)
    aim = Aim(
        what="seconds to the end of the first step", wanted=MOST_SECONDS, got=total, at_least=False
    )
    console.print(str(aim), highlight=False)
    write_json(json, both, [aim])
    if check and not aim.is_met:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
