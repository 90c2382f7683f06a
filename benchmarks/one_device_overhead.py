"""Cost of evener per step on one device, beside a plain ``tf.function`` loop.

Keras's own ``fit`` runs beside both: it tells how much of the difference is Keras's.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side import contenders
from side_by_side.figures import Aim, spread, terminal, write_json
from side_by_side.problems import PROBLEMS
from side_by_side.quiet import MOST_FOREIGN, Quiet
from side_by_side.workers import Worker, closing

_LEAST_ROUNDS = 3
EVENER, KERAS, PLAIN = "evener fit", "Keras fit", "plain loop"


def step_seconds(
    team: dict[str, Worker], name: str, quiet: Quiet, *, optimizer: str, rounds: int, seconds: float
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Let all contenders train one problem in turns.

    Returns:
        Their seconds per step, of undisturbed rounds, and their core-seconds per step.
    """
    num_steps = {}
    for contender, worker in team.items():
        worker.call("prepare", name, optimizer)
        worker.call("run", 5)
        first = worker.call("run", 20)
        num_steps[contender] = max(20, math.ceil(seconds * 20 / first.seconds))
    found: dict[str, list[float]] = {contender: [] for contender in team}
    cores: dict[str, list[float]] = {contender: [] for contender in team}
    order = list(team)
    calm: list[bool] = []
    for _ in range(rounds):
        foreign = []
        for contender in order:
            turn = quiet.turn(partial(team[contender].call, "run", num_steps[contender]))
            found[contender].append(turn.result.seconds / turn.result.num_steps)
            cores[contender].append(turn.result.core_seconds / turn.result.num_steps)
            foreign.append(turn.foreign)
        calm.append(max(foreign) <= MOST_FOREIGN)
        order = order[1:] + order[:1]
    return undisturbed(found, calm), cores


def undisturbed(found: dict[str, list[float]], calm: list[bool]) -> dict[str, list[float]]:
    """Return the rounds in which nobody disturbed anyone, or all where they are too few."""
    kept = calm if sum(calm) >= _LEAST_ROUNDS else [True] * len(calm)
    return {who: list(compress(values, kept)) for who, values in found.items()}


def overhead(found: dict[str, list[float]], contender: str) -> dict[str, Any]:
    """Return what a contender's step costs more than the plain one, paired by round."""
    pairs = list(zip(found[contender], found[PLAIN], strict=True))
    return {
        "microseconds": asdict(spread([(a - b) * 1e6 for a, b in pairs])),
        "percent": asdict(spread([(a / b - 1) * 100 for a, b in pairs])),
    }


def _table(name: str, found: dict[str, list[float]], cores: dict[str, list[float]]) -> Table:
    table = Table(title=f"{name}, one device of one thread", title_justify="left")
    table.add_column("contender", no_wrap=True)
    for heading in ("step, us", "more than plain, us", "more than plain, %", "in core-time, %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for contender, seconds in found.items():
        more = overhead(found, contender)
        table.add_row(
            contender,
            f"{statistics.median(seconds) * 1e6:,.0f}",
            f"{more['microseconds']['median']:,.0f}",
            *(
                "{median:.1f} ({least:.1f} to {most:.1f})".format(
                    **overhead(kind, contender)["percent"]
                )
                for kind in (found, cores)
            ),
        )
    return table


def main(
    models: Annotated[str, typer.Option(help="comma list of mlp, tiny, cnn, transformer")] = (
        "mlp,tiny"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="turns of every contender")] = 9,
    seconds: Annotated[float, typer.Option(min=0.1, help="length of a turn")] = 1.5,
    optimizer: Annotated[str, typer.Option(help="adam or sgd")] = "adam",
    patience: Annotated[
        float, typer.Option(min=0.0, help="seconds to wait per turn for a quiet machine")
    ] = 20.0,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/one_device_overhead.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if the aim is missed")] = False,
) -> None:
    """Compare a step of evener on one device with a plain one."""
    team = {
        EVENER: Worker(contenders.Fit, num_devices=1, make_strategy=contenders.evener_measured),
        KERAS: Worker(contenders.Fit, num_devices=1),
        PLAIN: Worker(contenders.PlainLoop),
    }
    console = terminal()
    quiet = Quiet(pids=tuple(worker.pid for worker in team.values()), patience_seconds=patience)
    figures: dict[str, Any] = {}
    aims: list[Aim] = []
    with closing(*team.values()):
        for name in models.split(","):
            if name not in PROBLEMS:
                raise typer.BadParameter(f"{name!r} is none of {', '.join(PROBLEMS)}")
            found, cores = step_seconds(
                team, name, quiet, optimizer=optimizer, rounds=rounds, seconds=seconds
            )
            more = {contender: overhead(found, contender) for contender in team}
            figures[name] = {
                "step_seconds": found,
                "step_core_seconds": cores,
                "overhead": more,
                "overhead_in_core_seconds": {who: overhead(cores, who) for who in team},
            }
            console.print(_table(name, found, cores))
            if name == "mlp":
                percent = more[EVENER]["percent"]["median"]
                what = "mlp, overhead of evener on one device, %"
                aims.append(Aim(what=what, wanted=2.0, got=percent, at_least=False))
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    if quiet.num_disturbed:
        console.print(f"{quiet.num_disturbed} turns were disturbed by other programs.")
    write_json(json, {"optimizer": optimizer, "models": figures}, aims)
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
