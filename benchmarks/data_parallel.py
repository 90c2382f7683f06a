"""evener beside its peers: data-parallel training on two stand-ins of one thread each.

Run by ``make bench``; ``docs/benchmarks.md`` says what each contender is.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side import contenders
from side_by_side.figures import Aim, paired, spread, terminal, write_json
from side_by_side.problems import PROBLEMS
from side_by_side.quiet import Quiet
from side_by_side.turns import compare, undisturbed
from side_by_side.workers import Worker, barrier, closing

NUM_DEVICES = 2
EVEN, MEASURED = "evener fit, even shares", "evener fit"
MIRRORED, LOOP = "MirroredStrategy fit", "MirroredStrategy loop"
ONE, LIMIT = "one device fit", "limit"
OWN_LOOP = "evener loop"
CONTENDERS = (MEASURED, EVEN, OWN_LOOP, MIRRORED, LOOP, ONE, LIMIT)


def start_workers() -> dict[str, list[Worker]]:
    """Start the processes of every contender; the limit has one for each core."""

    def fit(make_strategy: Any, num_devices: int = NUM_DEVICES) -> list[Worker]:
        return [Worker(contenders.Fit, num_devices=num_devices, make_strategy=make_strategy)]

    def loop(make_strategy: Any) -> list[Worker]:
        return [Worker(contenders.Loop, num_devices=NUM_DEVICES, make_strategy=make_strategy)]

    start = barrier(NUM_DEVICES)
    cores = sorted(os.sched_getaffinity(0))[:NUM_DEVICES]
    return {
        MEASURED: fit(contenders.evener_measured),
        EVEN: fit(contenders.evener_even),
        MIRRORED: fit(contenders.mirrored),
        OWN_LOOP: loop(contenders.evener_measured),
        LOOP: loop(contenders.mirrored),
        ONE: fit(None, num_devices=1),
        LIMIT: [
            Worker(contenders.PlainLoop, cores={core}, part=1 / NUM_DEVICES, start=start)
            for core in cores
        ],
    }


def table_of(name: str, figures: dict[str, Any]) -> Table:
    """Return the table of one problem."""
    title = f"{name}, batch {PROBLEMS[name].batch_size}, samples/s"
    table = Table(title=title, title_justify="left")
    table.add_column("contender", no_wrap=True)
    for heading in ("median", "min", "max", "/ Mirrored fit", "/ limit", "core-time / limit"):
        table.add_column(heading, justify="right", no_wrap=True)
    cores = figures["core_seconds_per_sample"]
    for contender in CONTENDERS:
        own = spread(undisturbed(figures, contender)[0])
        table.add_row(
            contender,
            *(f"{value:,.0f}" for value in (own.median, own.least, own.most)),
            paired(*undisturbed(figures, contender, MIRRORED)).text(2),
            paired(*undisturbed(figures, contender, LIMIT)).text(3),
            f"{paired(cores[contender], cores[LIMIT]).median:.3f}",
        )
    return table


def aims_of(name: str, figures: dict[str, Any]) -> list[Aim]:
    """Return what this problem should show, for evener as it is by default and even."""
    aims = []
    least = PROBLEMS[name].least_of_limit
    for who in (MEASURED, EVEN):
        over_mirrored = paired(*undisturbed(figures, who, MIRRORED)).median
        of_limit = paired(*undisturbed(figures, who, LIMIT)).median
        aims += [
            Aim(what=f"{name}, {who} over {MIRRORED}", wanted=1.5, got=over_mirrored),
            Aim(what=f"{name}, {who} over the limit", wanted=least, got=of_limit),
        ]
    own = undisturbed(figures, OWN_LOOP, LIMIT)
    aims += [
        Aim(what=f"{name}, {OWN_LOOP} over {LOOP}", wanted=1.0, got=loop_over_loop(figures)),
        Aim(what=f"{name}, {OWN_LOOP} over the limit", wanted=least, got=paired(*own).median),
    ]
    return aims


def loop_over_loop(figures: dict[str, Any]) -> float:
    """Return how much faster a custom loop is under evener than under its peer."""
    return paired(*undisturbed(figures, OWN_LOOP, LOOP)).median


def main(
    models: Annotated[str, typer.Option(help="comma list of mlp, cnn, transformer")] = (
        "mlp,cnn,transformer"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="turns of every contender")] = 9,
    seconds: Annotated[float, typer.Option(min=0.1, help="length of a turn")] = 1.0,
    optimizer: Annotated[str, typer.Option(help="adam or sgd")] = "adam",
    patience: Annotated[
        float, typer.Option(min=0.0, help="seconds to wait per turn for a quiet machine")
    ] = 10.0,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/data_parallel.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Compare evener with its peers, in turns, on two stand-ins of one thread each."""
    names = [name.strip() for name in models.split(",")]
    unknown = [name for name in names if name not in PROBLEMS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(PROBLEMS)}")
    console = terminal()
    figures: dict[str, Any] = {}
    aims: list[Aim] = []
    num_disturbed = 0
    for name in names:
        # New processes: two MirroredStrategies in one collide on the keys of collectives.
        teams = start_workers()
        everybody = [worker for team in teams.values() for worker in team]
        quiet = Quiet(pids=tuple(worker.pid for worker in everybody), patience_seconds=patience)
        with closing(*everybody):
            found = compare(teams, name, quiet, optimizer=optimizer, rounds=rounds, seconds=seconds)
        num_disturbed += quiet.num_disturbed
        figures[name] = {**found, "ratios": _ratios(found)}
        aims += aims_of(name, found)
        console.print(table_of(name, found))
        console.print(f"shares at the end: {found['notes'][MEASURED]['shares']}\n")
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    write_json(json, {"optimizer": optimizer, "models": figures}, aims)
    if num_disturbed:
        console.print(f"{num_disturbed} turns were disturbed by other programs.")
    console.print(f"figures: {json}")
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


def _ratios(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        who: {
            f"over {of}": asdict(paired(*undisturbed(figures, who, of))) for of in (MIRRORED, LIMIT)
        }
        for who in CONTENDERS
    }


if __name__ == "__main__":
    typer.run(main)
