"""evener's planner beside the rules of others, on described clusters: no device is used.

One cost model (`evener.planner.prediction.predict`) judges all of them, with times from
datasheets, and
the simulation is the referee:

    even split        every device a replica with the same share, what tf.distribute does
    by peak FLOP/s    shares by the peak of the types of device, as Whale does
    by curves         shares so that all devices compute for the same time, as Poplar does
    even stages       pipelines of stages with the same number of layers: one over all devices of
                      up to 16, else one for each machine; four micro-batches for each stage
    evener            `evener.planner.search_plan`

`side_by_side/rules.py` names the papers. Owners are spread over the devices for all of them. The
rules of others may split shares into as many micro-batches as memory asks for, the fewest that fit.

With ``--growth`` it says instead how long planning itself takes: see `side_by_side/growth.py`.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from side_by_side.figures import Aim, terminal, write_json
from side_by_side.growth import growth_figures
from side_by_side.rules import Problem, by_curves, by_flops, even_split, even_stages

from evener.base.text import format_bytes, format_seconds
from evener.clusters import cluster_named, cluster_names, datasheet_profile, model_named
from evener.planner import search_plan
from evener.planner.assignment import HOST_OWNER, Assignment
from evener.planner.prediction import predict

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from simulation.simulation import simulate

SAMPLES_PER_DEVICE = {"resnet-50": 64, "bert-large": 16, "gpt3-1.3b": 8, "gpt3-13b": 8}
EVENER = "evener"
RULES: dict[str, Callable[[Problem], Iterator[Assignment]]] = {
    "even split": even_split,
    "by peak FLOP/s": by_flops,
    "by curves": by_curves,
    "even stages": even_stages,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Predicted and simulated cost of a plan.

    Attributes:
        predicted_seconds: Seconds of a step by the cost model.
        simulated_seconds: Seconds of a step by the simulation; None if it does not fit.
        lacking_bytes: Bytes that the device lacks which lacks most, 0 if all have enough.
        device: Name of that device, or an empty text.
        layout: Description of the plan in words.
    """

    predicted_seconds: float
    simulated_seconds: float | None
    lacking_bytes: int
    device: str
    layout: str

    @property
    def fits(self) -> bool:
        """Whether all devices have enough memory."""
        return self.lacking_bytes == 0


@functools.lru_cache(maxsize=8)
def judge(assignment: Assignment, problem: Problem) -> Judged:
    """Predict what a plan needs, and simulate it if it fits; equal plans of several rules once."""
    profile = problem.profile
    found = predict(assignment, profile)
    cluster = profile.cluster
    lacking, worst = 0, ""
    for place, needs in found.memory.items():
        if place == HOST_OWNER:
            name, capacity = "host", cluster.machines[0].host_memory_bytes
        else:
            name, capacity = cluster.devices[place].name, cluster.devices[place].memory_bytes
        if capacity is not None and needs.total - capacity > lacking:
            lacking, worst = needs.total - capacity, name
    return Judged(
        predicted_seconds=found.step_seconds,
        simulated_seconds=None if lacking else simulate(assignment, profile).step_seconds,
        lacking_bytes=lacking,
        device=worst,
        layout=layout_of(assignment),
    )


def layout_of(assignment: Assignment) -> str:
    """Return for example ``"2 x 4 stages, 16 micro-batches; recomputed"``."""
    shapes = sorted(
        (len(replica.spans), replica.num_micro_batches) for replica in assignment.replicas
    )
    parts = [
        f"{len(list(group))} x {stages} stage{'s' if stages > 1 else ''}"
        + (f", {count} micro-batches" if count > 1 else "")
        for (stages, count), group in itertools.groupby(shapes)
    ]
    if any(assignment.recompute):
        parts.append("recomputed")
    if HOST_OWNER in assignment.owners:
        parts.append("host owns")
    return "; ".join(parts)


def by_rule(rule: Callable[[Problem], Iterator[Assignment]], problem: Problem) -> Judged:
    """Judge the first plan of a rule that fits, or else the one that lacks least."""
    least: Judged | None = None
    for assignment in rule(problem):
        judged = judge(assignment, problem)
        if judged.fits:
            return judged
        if least is None or judged.lacking_bytes < least.lacking_bytes:
            least = judged
    assert least is not None, "every rule has a plan"
    return least


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All plans of one problem."""

    cluster: str
    model: str
    batch_size: int
    judged: dict[str, Judged]
    search_seconds: float

    def times_evener(self, name: str, seconds: str) -> float | None:
        """Return how many times as long as evener's plan another takes, if both fit.

        Args:
            name: Name of the other rule.
            seconds: ``"predicted_seconds"`` or ``"simulated_seconds"``.
        """
        other, own = self.judged[name], self.judged.get(EVENER)
        return getattr(other, seconds) / getattr(own, seconds) if own and other.fits else None


def measure(cluster: str, model: str) -> Row:
    """Plan one model on one cluster by all rules."""
    described = cluster_named(cluster)
    profile = datasheet_profile(model_named(model), described)
    batch_size = SAMPLES_PER_DEVICE[model] * len(profile.cluster.devices)
    problem = Problem(described=described, profile=profile, batch_size=batch_size)
    judged = {name: by_rule(rule, problem) for name, rule in RULES.items()}
    began = time.perf_counter()
    found = search_plan(profile, batch_size)
    seconds = time.perf_counter() - began
    if found.best is not None:
        judged[EVENER] = judge(found.assignment, problem)
    return Row(
        cluster=cluster,
        model=model,
        batch_size=batch_size,
        judged=judged,
        search_seconds=seconds,
    )


def main(
    clusters: Annotated[str, typer.Option(help="names, with commas")] = ",".join(cluster_names()),
    models: Annotated[str, typer.Option(help="names, with commas")] = ",".join(SAMPLES_PER_DEVICE),
    json: Annotated[
        Path | None,
        typer.Option(
            help="where the figures go; results/planning.json, or results/planning_growth.json"
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
    growth: Annotated[
        bool, typer.Option("--growth", help="time planning for more devices and layers instead")
    ] = False,
    plot: Annotated[Path, typer.Option(help="where the plot of --growth goes")] = Path(
        "docs/planning_growth.svg"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="of --growth")] = 3,
) -> None:
    """Compare evener's plans with those of other rules on described clusters."""
    console = terminal()
    if growth:
        figures, aims = growth_figures(console, plot=plot, rounds=rounds)
        _end(console, json or Path("results/planning_growth.json"), figures, aims, check=check)
        return
    pairs = list(itertools.product(clusters.split(","), models.split(",")))
    rows = [measure(*pair) for pair in track(pairs, "planning", console=console, transient=True)]
    console.print("No device was used: all times are computed, from datasheets and shapes.")
    for seconds in ("predicted", "simulated"):
        console.print(_table(rows, seconds))
    console.print(_plans(rows))
    figures = {"measured": False, "plans": [asdict(row) for row in rows]}
    _end(console, json or Path("results/planning.json"), figures, _aims(rows), check=check)


def _end(
    console: Console, json: Path, figures: dict[str, Any], aims: Sequence[Aim], *, check: bool
) -> None:
    """Print the aims and write the figures."""
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    write_json(json, figures, aims)
    console.print(f"figures: {json}")
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


def _aims(rows: Sequence[Row]) -> list[Aim]:
    missed = sum(
        EVENER not in row.judged and any(judged.fits for judged in row.judged.values())
        for row in rows
    )
    off = [
        abs(judged.simulated_seconds / judged.predicted_seconds - 1)
        for row in rows
        for judged in row.judged.values()
        if judged.simulated_seconds is not None
    ]
    what = "time of another plan over evener's, {}, least"
    return [
        *(
            Aim(what=what.format(seconds), wanted=wanted, got=_least(rows, f"{seconds}_seconds"))
            for seconds, wanted in (("predicted", 1.0), ("simulated", 0.95))
        ),
        Aim(what="plans that only others find", wanted=0, got=missed, at_least=False),
        Aim(
            what="simulation off the prediction, median",
            wanted=0.05,
            got=statistics.median(off) if off else 0.0,
            at_least=False,
        ),
    ]


def _least(rows: Sequence[Row], seconds: str) -> float:
    ratios = (row.times_evener(name, seconds) for row in rows for name in RULES)
    return min((ratio for ratio in ratios if ratio is not None), default=math.inf)


def _table(rows: Sequence[Row], seconds: str) -> Table:
    title = f"{seconds} time of a step; in brackets, times evener's"
    table = Table(title=title, title_justify="left")
    for heading in ("cluster", "model"):
        table.add_column(heading, no_wrap=True)
    for heading in ("batch", *RULES, EVENER):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [_cell(row, name, f"{seconds}_seconds") for name in (*RULES, EVENER)]
        is_last = row.model == rows[-1].model
        table.add_row(row.cluster, row.model, str(row.batch_size), *cells, end_section=is_last)
    return table


def _cell(row: Row, name: str, seconds: str) -> str:
    judged = row.judged.get(name)
    if judged is None:
        return "nothing fits"
    if not judged.fits and seconds == "simulated_seconds":
        return "does not fit"
    if not judged.fits:
        return f"does not fit: {judged.device} lacks {format_bytes(judged.lacking_bytes)}"
    ratio = row.times_evener(name, seconds)
    more = f" ({ratio:.2f})" if ratio is not None and name != EVENER else ""
    return format_seconds(getattr(judged, seconds)) + more


def _plans(rows: Sequence[Row]) -> Table:
    table = Table(title="evener's plans", title_justify="left")
    for heading in ("cluster", "model", "plan"):
        table.add_column(heading)
    table.add_column("found in", justify="right")
    for row in rows:
        if EVENER in row.judged:
            table.add_row(
                row.cluster,
                row.model,
                row.judged[EVENER].layout,
                format_seconds(row.search_seconds),
                end_section=row.model == rows[-1].model,
            )
    return table


if __name__ == "__main__":
    typer.run(main)
