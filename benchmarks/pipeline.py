"""evener's pipeline beside pipelines by hand: two stages on two stand-ins of one thread each.

``docs/benchmarks.md`` says what each contender is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side import contenders, pipelines
from side_by_side.figures import Aim, Spread, paired, spread, terminal, write_json
from side_by_side.problems import PROBLEMS
from side_by_side.quiet import Quiet
from side_by_side.turns import compare, undisturbed
from side_by_side.workers import Worker, barrier, closing

NUM_DEVICES = 2
NAIVE, LIMIT = "naive tf.device", "limit"
MODELS = {"mlp": "deep_mlp", "transformer": "deep_transformer"}
# Schedules of `fit`, and the loop's, which is 1F1B.
KINDS = ("1f1b", "loop")
_LEAST_STEPS = 3


def evener_name(kind: str, num_micro_batches: int) -> str:
    """Return the name of a contender."""
    return f"evener {kind}, {num_micro_batches}"


def by_hand_name(num_micro_batches: int, *, in_order: bool = True) -> str:
    """Return the name of a contender."""
    return f"{'hand-pinned GPipe' if in_order else 'by hand, any order'}, {num_micro_batches}"


def start_workers(kinds: Sequence[str], micro_batches: Sequence[int]) -> dict[str, list[Worker]]:
    """Start the processes of every contender; the limit has one for each core."""
    teams: dict[str, list[Worker]] = {}
    for kind in kinds:
        for m in micro_batches:
            worker = Worker(
                pipelines.StagedLoop if kind == "loop" else pipelines.StagedFit,
                num_devices=NUM_DEVICES,
                num_micro_batches=m,
                in_flight=NUM_DEVICES,
                schedule="1f1b" if kind == "loop" else kind,
            )
            teams[evener_name(kind, m)] = [worker]
    teams[NAIVE] = [Worker(pipelines.NaiveDevices, num_devices=NUM_DEVICES)]
    for m in micro_batches:
        for in_order in (True, False):
            worker = Worker(
                pipelines.PinnedGPipe,
                num_devices=NUM_DEVICES,
                num_micro_batches=m,
                in_order=in_order,
            )
            teams[by_hand_name(m, in_order=in_order)] = [worker]
    start = barrier(NUM_DEVICES)
    teams[LIMIT] = [
        Worker(contenders.PlainLoop, cores={core}, part=1 / NUM_DEVICES, start=start)
        for core in sorted(os.sched_getaffinity(0))[:NUM_DEVICES]
    ]
    return teams


def full_part(num_micro_batches: int) -> float:
    """Return the part of its time in which a pipeline of stages of equal cost is full."""
    return num_micro_batches / (num_micro_batches + NUM_DEVICES - 1)


def ratios_of(figures: dict[str, Any], who: str, num_micro_batches: int) -> dict[str, Spread]:
    """Return the speed of a contender over those of others, round by round."""
    own, limit = undisturbed(figures, who, LIMIT)
    return {
        "naive": paired(*undisturbed(figures, who, NAIVE)),
        "GPipe": paired(*undisturbed(figures, who, by_hand_name(num_micro_batches))),
        "any order": paired(
            *undisturbed(figures, who, by_hand_name(num_micro_batches, in_order=False))
        ),
        "limit": paired(own, limit),
        "ideal": paired(own, [speed * full_part(num_micro_batches) for speed in limit]),
    }


def table_of(name: str, figures: dict[str, Any], micro_batches: Sequence[int]) -> Table:
    """Return the table of one problem."""
    title = f"{name}, batch {PROBLEMS[name].batch_size}, samples/s"
    table = Table(title=title, title_justify="left")
    table.add_column("contender, micro-batches", no_wrap=True)
    ratios = ("/ naive", "/ GPipe", "/ any", "/ limit", "/ ideal")
    for heading in ("median", "min", "max", *ratios, "core-time"):
        table.add_column(heading, justify="right", no_wrap=True)
    cores = figures["core_seconds_per_sample"]
    named = {who: m for m in micro_batches for who in _of_micro_batches(figures, m)}
    for who in figures["samples_per_second"]:
        own = spread(undisturbed(figures, who)[0])
        speeds = [f"{value:,.0f}" for value in (own.median, own.least, own.most)]
        if who in named:
            found = ratios_of(figures, who, named[who]).values()
            shown = [f"{ratio.median:.3f}" for ratio in found]
        else:
            over_naive, over_limit = (
                f"{paired(*undisturbed(figures, who, of)).median:.3f}" for of in (NAIVE, LIMIT)
            )
            shown = [over_naive, "", "", over_limit, ""]
        more = f"{paired(cores[who], cores[LIMIT]).median:.3f}"
        table.add_row(who, *speeds, *shown, more)
    return table


def _of_micro_batches(figures: dict[str, Any], m: int) -> list[str]:
    by_hand = [by_hand_name(m, in_order=in_order) for in_order in (True, False)]
    names = [*(evener_name(kind, m) for kind in KINDS), *by_hand]
    return [name for name in names if name in figures["samples_per_second"]]


def aims_of(name: str, figures: dict[str, Any], micro_batches: Sequence[int]) -> list[Aim]:
    """Return what this problem should show."""
    aims = []
    for m in micro_batches:
        who = evener_name("1f1b", m)
        ratios = ratios_of(figures, who, m)
        aims += [
            Aim(what=f"{name}, {who} over {NAIVE}", wanted=1.4, got=ratios["naive"].median),
            Aim(what=f"{name}, {who} over GPipe", wanted=1.0, got=ratios["GPipe"].median),
            Aim(what=f"{name}, {who} over the ideal", wanted=0.95, got=ratios["ideal"].median),
        ]
    return aims


def main(
    models: Annotated[str, typer.Option(help="comma list of mlp, transformer")] = (
        "mlp,transformer"
    ),
    micro_batches: Annotated[str, typer.Option(help="comma list of numbers")] = "4,8",
    more: Annotated[str, typer.Option(help="loop: run it too")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="turns of every contender")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="length of a turn")] = 1.0,
    optimizer: Annotated[str, typer.Option(help="adam or sgd")] = "sgd",
    patience: Annotated[
        float, typer.Option(min=0.0, help="seconds to wait per turn for a quiet machine")
    ] = 1.0,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/pipeline.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Compare evener's pipeline with pipelines by hand, in turns, on two stand-ins."""
    asked = [name.strip() for name in models.split(",")]
    unknown = [name for name in asked if name not in MODELS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(MODELS)}")
    numbers = _numbers(micro_batches)
    kinds = ["1f1b", *filter(None, (kind.strip() for kind in more.split(",")))]
    if not set(kinds) <= set(KINDS):
        raise typer.BadParameter(f"{more!r} is no list of {', '.join(KINDS[1:])}")
    console = terminal()
    figures: dict[str, Any] = {}
    aims: list[Aim] = []
    num_disturbed = 0
    teams = start_workers(kinds, numbers)
    everybody = [worker for team in teams.values() for worker in team]
    with closing(*everybody):
        for name in (MODELS[short] for short in asked):
            quiet = Quiet(pids=tuple(worker.pid for worker in everybody), patience_seconds=patience)
            found = compare(
                teams,
                name,
                quiet,
                optimizer=optimizer,
                rounds=rounds,
                seconds=seconds,
                least_steps=_LEAST_STEPS,
            )
            num_disturbed += quiet.num_disturbed
            figures[name] = {**found, "ratios": _all_ratios(found, numbers)}
            aims += aims_of(name, found, numbers)
            console.print(table_of(name, found, numbers))
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    write_json(json, {"optimizer": optimizer, "models": figures}, aims)
    if num_disturbed:
        console.print(f"{num_disturbed} turns were disturbed by other programs.")
    console.print(f"figures: {json}")
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no comma list of numbers") from error
    # Those by hand cut a batch into pieces of one size.
    sizes = [PROBLEMS[name].batch_size for name in MODELS.values()]
    if any(m < NUM_DEVICES or any(size % m for size in sizes) for m in numbers):
        listed = " and ".join(map(str, sizes))
        raise typer.BadParameter(
            f"micro-batches must divide {listed}, and be {NUM_DEVICES} or more"
        )
    return numbers


def _all_ratios(figures: dict[str, Any], micro_batches: Sequence[int]) -> dict[str, Any]:
    return {
        who: {f"over {of}": asdict(ratio) for of, ratio in ratios_of(figures, who, m).items()}
        for m in micro_batches
        for who in _of_micro_batches(figures, m)
    }


if __name__ == "__main__":
    typer.run(main)
