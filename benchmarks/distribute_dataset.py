"""What a distributed dataset costs, beside a plain `tf.data` loop of the same steps.

Both train under the same strategy. One reads what ``experimental_distribute_dataset`` gives;
the other reads whole batches and halves them inside its step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from side_by_side import contenders
from side_by_side.figures import Aim, paired, spread, terminal, write_json
from side_by_side.problems import PROBLEMS
from side_by_side.quiet import Quiet
from side_by_side.turns import compare, undisturbed
from side_by_side.workers import Worker, closing

NUM_DEVICES = 2
DISTRIBUTED, PLAIN = "distributed dataset", "plain tf.data"


def main(
    model: Annotated[str, typer.Option(help=f"one of {', '.join(PROBLEMS)}")] = "mlp",
    rounds: Annotated[int, typer.Option(min=1, help="turns of both")] = 9,
    seconds: Annotated[float, typer.Option(min=0.1, help="length of a turn")] = 1.0,
    patience: Annotated[
        float, typer.Option(min=0.0, help="seconds to wait per turn for a quiet machine")
    ] = 10.0,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/distribute_dataset.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if the aim is missed")] = False,
) -> None:
    """Compare both loops in turns, on two stand-ins of one thread each."""
    if model not in PROBLEMS:
        raise typer.BadParameter(f"{model!r} is none of {', '.join(PROBLEMS)}")
    team = {
        who: [Worker(kind, num_devices=NUM_DEVICES, make_strategy=contenders.evener_even)]
        for who, kind in (
            (DISTRIBUTED, contenders.Loop),
            (PLAIN, contenders.LoopOverWholeBatches),
        )
    }
    workers = [worker for workers in team.values() for worker in workers]
    quiet = Quiet(pids=tuple(worker.pid for worker in workers), patience_seconds=patience)
    with closing(*workers):
        found = compare(team, model, quiet, optimizer="adam", rounds=rounds, seconds=seconds)
    ratio = paired(*undisturbed(found, DISTRIBUTED, PLAIN))
    console = terminal()
    table = Table(title=f"{model}, samples/s", title_justify="left")
    for heading in ("loop over", "median", "min", "max"):
        table.add_column(heading)
    for who in team:
        own = spread(undisturbed(found, who)[0])
        table.add_row(who, *(f"{value:,.0f}" for value in (own.median, own.least, own.most)))
    console.print(table)
    aim = Aim(what=f"{DISTRIBUTED} over {PLAIN}", wanted=0.97, got=ratio.median)
    console.print(f"{aim} ({ratio.text(3)})", highlight=False)
    write_json(json, {model: found}, [aim])
    if quiet.num_disturbed:
        console.print(f"{quiet.num_disturbed} turns were disturbed by other programs.")
    if check and not aim.is_met:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
