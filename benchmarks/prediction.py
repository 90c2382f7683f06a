"""Predicted and measured times and memory of plans, on stand-ins of one thread each.

A process for each model profiles it once, layer by layer, and then trains it under each plan, in
turns. ``side_by_side/layouts.py`` lists the cases and says which half each of them falls into.
"""

from __future__ import annotations

import functools
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from side_by_side.figures import Aim, terminal, write_json
from side_by_side.layouts import HALVES, MODELS, PLANS_OF, case_name, half_of
from side_by_side.predicted import Expected, Planned
from side_by_side.predicted_memory import DeviceMemory, measure_memory, profile_of
from side_by_side.quiet import MOST_FOREIGN, Quiet, Turn
from side_by_side.workers import Worker, closing

from evener.base.text import format_bytes

MOST_OFF = 0.1
MOST_MEMORY_OFF = 0.05
MOST_MEMORY_BELOW = 0.02
_LEAST_TURNS = 3
_LEAST_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model under a plan.

    Attributes:
        name: Name of the case.
        expected: Prediction of the cost model.
        turns: Median seconds of a step, for every turn.
        core_turns: Core-seconds of a step, for every turn.
        foreign: Part of the machine that other programs used, for every turn, 0 to 1.
    """

    name: str
    expected: Expected
    turns: tuple[float, ...]
    core_turns: tuple[float, ...]
    foreign: tuple[float, ...]

    @property
    def half(self) -> str:
        """The half into which it falls."""
        return half_of(self.name)

    @property
    def counts(self) -> bool:
        """Whether there is a core for every device: else they wait for each other's."""
        return self.expected.num_devices <= (os.cpu_count() or 1)

    @property
    def seconds(self) -> float:
        """The median over the turns that nobody disturbed, or over all if these are few."""
        return statistics.median(_undisturbed(self.turns, self.foreign))

    @property
    def core_seconds(self) -> float:
        """As `seconds`, of the processor."""
        return statistics.median(_undisturbed(self.core_turns, self.foreign))

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.expected.seconds / self.seconds

    @property
    def core_ratio(self) -> float:
        """Predicted over measured, of the processor's time of all devices together."""
        return self.expected.core_seconds / self.core_seconds


def _undisturbed(values: Sequence[float], foreign: Sequence[float]) -> Sequence[float]:
    kept = [value for value, by in zip(values, foreign, strict=True) if by <= MOST_FOREIGN]
    return kept if len(kept) >= _LEAST_TURNS else values


def measure(
    model: str,
    plans: Sequence[str],
    *,
    optimizer: str,
    rounds: int,
    steps: int,
    patience: float,
    by_processor: bool,
) -> tuple[list[Case], dict[str, Any]]:
    """Predict and train one model under some plans; return the cases and the profile."""
    worker = Worker(Planned, model=model, optimizer=optimizer)
    with closing(worker):
        quiet = Quiet(pids=(worker.pid,), patience_seconds=patience)
        profile = quiet.turn(lambda: worker.call("profile", by_processor=by_processor)).result
        expected = {plan: worker.call("prepare", plan) for plan in plans}
        turns: dict[str, list[Turn]] = {plan: [] for plan in plans}
        order = list(plans)
        for _ in range(rounds):
            for plan in order:
                run = functools.partial(worker.call, "run", plan, steps)
                turns[plan].append(quiet.turn(run))
            order = order[1:] + order[:1]
    cases = [
        Case(
            name=case_name(model, plan),
            expected=expected[plan],
            turns=tuple(turn.result[0] for turn in turns[plan]),
            core_turns=tuple(turn.result[1] for turn in turns[plan]),
            foreign=tuple(turn.foreign for turn in turns[plan]),
        )
        for plan in plans
    ]
    return cases, profile


def main(
    models: Annotated[str, typer.Option(help="comma list of models")] = ",".join(MODELS),
    half: Annotated[str, typer.Option(help="tuning, held out or both")] = "both",
    rounds: Annotated[int, typer.Option(min=1, help="turns of every plan")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="steps of a turn")] = 8,
    optimizer: Annotated[str, typer.Option(help="adam or sgd")] = "adam",
    by_processor: Annotated[
        bool, typer.Option("--by-processor", help="profile by the processor's time")
    ] = False,
    patience: Annotated[
        float, typer.Option(min=0.0, help="seconds to wait per turn for a quiet machine")
    ] = 3.0,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/prediction.json"
    ),
    memory: Annotated[
        bool, typer.Option("--memory", help="compare bytes on each device instead of times")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Compare the predicted time of a step with the measured one, for models under plans."""
    halves = _asked(half, (*HALVES, "both"))
    console = terminal()
    if memory:
        aims = _compare_memory(console, _asked(models, tuple(MODELS)), halves, optimizer, json)
        if check and not all(aim.is_met for aim in aims):
            raise typer.Exit(1)
        return
    cases: list[Case] = []
    profiles: dict[str, Any] = {}
    for model in _asked(models, tuple(MODELS)):
        plans = _plans_of(model, halves)
        if plans:
            found, profiles[model] = measure(
                model,
                plans,
                optimizer=optimizer,
                rounds=rounds,
                steps=steps,
                patience=patience,
                by_processor=by_processor,
            )
            cases += found
            console.print(f"{model}: {len(found)} plans measured", highlight=False)
    aims = _report(console, cases)
    write_json(json, {"cases": [asdict(case) for case in cases], "profiles": profiles}, aims)
    console.print(f"figures: {json}")
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


def _report(console: Console, cases: Sequence[Case]) -> list[Aim]:
    """Print the tables of both halves, and whether each aim is met."""
    aims: list[Aim] = []
    for name in HALVES:
        of_half = [case for case in cases if case.half == name]
        if of_half:
            console.print(_table(name, of_half))
            aims += _aims(name, of_half)
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    disturbed = sum(min(case.foreign) > MOST_FOREIGN for case in cases)
    if disturbed:
        console.print(f"{disturbed} cases had no turn that other programs did not disturb.")
    return aims


def _plans_of(model: str, halves: Sequence[str]) -> list[str]:
    return [
        plan
        for plan in PLANS_OF[model]
        if halves == ["both"] or half_of(case_name(model, plan)) in halves
    ]


def _compare_memory(
    console: Console, models: Sequence[str], halves: Sequence[str], optimizer: str, json: Path
) -> list[Aim]:
    """Print the peak bytes of every device under every plan, and whether the aims are met."""
    found: dict[str, Sequence[DeviceMemory]] = {}
    for model in models:
        plans = _plans_of(model, halves)
        profile = profile_of(model, optimizer) if plans else ""
        for plan in plans:
            found[case_name(model, plan)] = measure_memory(model, plan, optimizer, profile)
    console.print(_memory_table(found))
    devices = [device for of_case in found.values() for device in of_case]
    ratios = [device.ratio for device in devices]
    aims = [
        Aim(
            what=f"memory of {len(ratios)} devices, off the measured one, median",
            wanted=MOST_MEMORY_OFF,
            got=statistics.median(abs(ratio - 1) for ratio in ratios),
            at_least=False,
        ),
        Aim(
            what="memory, the least predicted over the most that a step needed",
            wanted=1 - MOST_MEMORY_BELOW,
            got=min(device.total / device.most for device in devices),
        ),
    ]
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    figures = {name: [asdict(device) for device in of_case] for name, of_case in found.items()}
    write_json(json, {"memory": figures}, aims)
    console.print(f"figures: {json}")
    return aims


def _memory_table(found: Mapping[str, Sequence[DeviceMemory]]) -> Table:
    table = Table(title="peak of a device in a step", title_justify="left")
    for heading in ("case", "device"):
        table.add_column(heading, no_wrap=True)
    for heading in ("predicted", "measured", "most", "between steps", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, of_case in found.items():
        for device in of_case:
            sizes = (round(device.total), device.peak, device.most, device.between)
            table.add_row(name, device.device, *map(format_bytes, sizes), f"{device.ratio:.2f}")
    return table


def _asked(text: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise typer.BadParameter(f"{unknown!r} is none of {', '.join(known)}")
    return names


def _aims(half: str, cases: Sequence[Case]) -> list[Aim]:
    off = {
        "time of a step": [abs(case.ratio - 1) for case in cases if case.counts],
        "processor's time": [abs(case.core_ratio - 1) for case in cases],
    }
    return [
        Aim(
            what=f"{half}, {len(values)} cases, {what}, off the measured one, median",
            wanted=MOST_OFF,
            got=statistics.median(values),
            at_least=False,
        )
        for what, values in off.items()
        if values
    ]


def _table(half: str, cases: Sequence[Case]) -> Table:
    table = Table(title=f"{half}: milliseconds of a step", title_justify="left")
    table.add_column("case", no_wrap=True)
    headings = ("predicted", "measured", "least", "ratio", "core-time", "measured", "ratio")
    for heading in (*headings, "others used"):
        table.add_column(heading, justify="right", no_wrap=True)
    for case in sorted(cases, key=lambda case: abs(case.core_ratio - 1)):
        expected = case.expected
        milliseconds = (expected.seconds, case.seconds, min(case.turns))
        table.add_row(
            case.name + ("" if case.counts else " *"),
            *(f"{1e3 * value:.1f}" for value in milliseconds),
            f"{case.ratio:.2f}",
            *(f"{1e3 * seconds:.1f}" for seconds in (expected.core_seconds, case.core_seconds)),
            f"{case.core_ratio:.2f}",
            f"{statistics.median(case.foreign):.0%}",
        )
    if not all(case.counts for case in cases):
        table.caption = "* more devices than cores: does not count for the aim"
    return table


if __name__ == "__main__":
    typer.run(main)
