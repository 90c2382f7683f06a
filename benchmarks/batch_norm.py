"""Cost of BatchNormalization of the whole batch, and of each device's samples.

A CNN with three such layers on two stand-ins of one thread each. MirroredStrategy normalizes the
samples of each device too, and the limit is a process on each core that has half of every batch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from side_by_side import contenders
from side_by_side.figures import Aim, paired, spread, terminal, write_json
from side_by_side.quiet import Quiet
from side_by_side.turns import compare, undisturbed
from side_by_side.workers import Worker, barrier, closing

WHOLE, PER_DEVICE = "evener, of the whole batch", "evener, of each device"
MIRRORED, LIMIT = "MirroredStrategy", "limit"
CONTENDERS = (PER_DEVICE, WHOLE, MIRRORED, LIMIT)
_PROBLEM = "cnn_with_batch_norm"


def start_workers() -> dict[str, list[Worker]]:
    """Start the processes of every contender; the limit has one for each core."""
    start, cores = barrier(2), sorted(os.sched_getaffinity(0))[:2]
    strategies = {
        WHOLE: contenders.evener_even,
        PER_DEVICE: contenders.evener_per_device,
        MIRRORED: contenders.mirrored,
    }
    teams = {
        who: [Worker(contenders.Fit, num_devices=2, make_strategy=make)]
        for who, make in strategies.items()
    }
    limit = [Worker(contenders.PlainLoop, cores={core}, part=0.5, start=start) for core in cores]
    return {**teams, LIMIT: limit}


def main(
    rounds: Annotated[int, typer.Option(min=1, help="turns of every contender")] = 9,
    seconds: Annotated[float, typer.Option(min=0.1, help="length of a turn")] = 1.0,
    patience: Annotated[
        float, typer.Option(min=0.0, help="seconds to wait per turn for a quiet machine")
    ] = 10.0,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/batch_norm.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Compare both ways with MirroredStrategy and the limit, in turns."""
    console = terminal()
    teams = start_workers()
    everybody = [worker for team in teams.values() for worker in team]
    quiet = Quiet(pids=tuple(worker.pid for worker in everybody), patience_seconds=patience)
    with closing(*everybody):
        found = compare(teams, _PROBLEM, quiet, optimizer="adam", rounds=rounds, seconds=seconds)
    table = Table(title=f"{_PROBLEM}, samples/s", title_justify="left")
    for heading in ("contender", "median", "min", "max", "/ limit"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for who in CONTENDERS:
        own = spread(undisturbed(found, who)[0])
        ratio = paired(*undisturbed(found, who, LIMIT)).text(3)
        table.add_row(who, f"{own.median:,.0f}", f"{own.least:,.0f}", f"{own.most:,.0f}", ratio)
    console.print(table)
    of_limit = paired(*undisturbed(found, WHOLE, LIMIT)).median
    over_mirrored = paired(*undisturbed(found, WHOLE, MIRRORED)).median
    aims = [
        Aim(what=f"{WHOLE} over {MIRRORED}", wanted=1.0, got=over_mirrored),
        Aim(what=f"{WHOLE} over {LIMIT}", wanted=0.9, got=of_limit),
    ]
    for aim in aims:
        console.print(str(aim), highlight=False)
    write_json(json, found, aims)
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
