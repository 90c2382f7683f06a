"""The search beside all plans of small spaces: random problems, how far from the best it ends.

Each problem has a seed of its own, from ``--seed`` on, so that one of them can be run again::

    python benchmarks/optimality.py --seed 1234 --count 1

The plans that are looked at are those of `tests/unit/planner/brute_force.py`: all groupings,
orders, cuts, shares and numbers of micro-batches, and every choice of layers
that are recomputed; in some problems all owners too.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from side_by_side.figures import Aim, terminal, write_json

from evener.planner import Choices, search_plan
from evener.profile import (
    CostProfile,
    Curve,
    LayerCosts,
    LayerTimes,
    Link,
    ModelCosts,
)

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from unit.planner.brute_force import best_plan, features_of
from unit.planner.profiles import MIB, cluster_of

COUNTS = (1, 2, 4)
NEAR = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Problems that are drawn alike."""

    most_devices: int
    most_layers: int
    batch_size: int = 6
    is_tight: bool = False
    all_owners: bool = False
    has_barriers: bool = False


KINDS = {
    "memory enough": Kind(most_devices=3, most_layers=4),
    "longer models": Kind(most_devices=2, most_layers=8, batch_size=8),
    "little memory": Kind(most_devices=3, most_layers=4, is_tight=True),
    "and all owners": Kind(most_devices=2, most_layers=3, is_tight=True, all_owners=True),
    "one device": Kind(most_devices=1, most_layers=8, batch_size=8, is_tight=True),
    "two devices": Kind(most_devices=2, most_layers=6, batch_size=4, is_tight=True),
    "with barriers": Kind(most_devices=2, most_layers=4, is_tight=True, has_barriers=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Result of one problem; a ratio of infinity where the search found nothing."""

    seed: int
    kind: str
    ratio: float
    best_features: tuple[str, ...]
    best_seconds: float
    search_seconds: float


def problem_of(seed: int) -> tuple[str, CostProfile]:
    """Return the kind of a problem, and the problem."""
    draw = random.Random(seed)
    name = list(KINDS)[seed % len(KINDS)]
    kind = KINDS[name]
    num_devices = kind.most_devices if draw.random() < 0.7 else draw.randint(1, kind.most_devices)
    num_layers = draw.randint(max(1, kind.most_layers // 2), kind.most_layers)
    slowness = [draw.choice((1.0, 1.0, 1.5, 2.5, 6.0)) for _ in range(num_devices)]
    seconds = [draw.choice((1e-3, 2e-3, 5e-3, 1e-2)) for _ in range(num_layers)]
    overhead = draw.choice((0.0, 1e-4, 2e-3))
    model = _model(draw, kind, num_layers)
    link = Link(
        bytes_per_second=draw.choice((1e8, 1e9, 1e11)),
        latency_seconds=draw.choice((0.0, 1e-4)),
    )
    memory = None
    if kind.is_tight:
        kept = sum(layer.activation_bytes for layer in model.layers) * kind.batch_size
        needed = model.owned_bytes + 2 * model.weight_bytes + kept * draw.choice((0, 0.3, 1))
        memory = [round(needed * draw.choice((0.3, 0.5, 0.7, 1.0, 2.0))) for _ in slowness]
    return name, CostProfile(
        model=model,
        cluster=cluster_of(list(map(str, slowness)), memory, link),
        times={
            str(slow): tuple(_times(draw_one * slow, overhead) for draw_one in seconds)
            for slow in slowness
        },
    )


def _model(draw: random.Random, kind: Kind, num_layers: int) -> ModelCosts:
    weights = draw.choice((MIB // 8, MIB, 8 * MIB))
    kept = draw.choice((1024.0, MIB / 8, MIB, 4.0 * MIB))
    crossing = draw.choice((64.0, 4096.0, MIB / 16))
    met = draw.randrange(num_layers) if kind.has_barriers else -1
    layers = tuple(
        LayerCosts(
            name=f"layer_{k}",
            weight_bytes=weights * draw.choice((0, 1, 1, 2)),
            optimizer_bytes=2 * weights,
            activation_bytes=kept * draw.choice((0.25, 1.0, 1.0, 3.0)),
            boundary_bytes=crossing * draw.choice((0.5, 1.0, 2.0)),
            forward_barriers=2 * (k == met),
            backward_barriers=int(k == met),
        )
        for k in range(num_layers)
    )
    return ModelCosts(name=f"drawn {kind}", layers=layers, input_bytes=crossing)


def _times(seconds: float, overhead: float) -> LayerTimes:
    def line(per_sample: float) -> Curve:
        return Curve(((1, overhead + per_sample), (64, overhead + 64 * per_sample)))

    return LayerTimes(
        forward=line(seconds),
        backward=line(2 * seconds),
        update_seconds=overhead / 2,
        accumulate_seconds=overhead / 8,
    )


def compare(seed: int) -> Compared | None:
    """Compare the search with all plans of a problem; None if no plan fits, and none is found."""
    name, profile = problem_of(seed)
    kind = KINDS[name]
    choices = Choices(num_micro_batches=COUNTS, host=kind.all_owners, simpler_within=0.0)
    began = time.perf_counter()
    found = search_plan(profile, kind.batch_size, choices).best
    search_seconds = time.perf_counter() - began
    best = best_plan(profile, kind.batch_size, num_micro_batches=COUNTS, all_owners=kind.all_owners)
    if best is None:
        assert found is None, f"seed {seed}: more is found than there is"
        return None
    seconds = float("inf") if found is None else found.prediction.step_seconds
    return Compared(
        seed=seed,
        kind=name,
        ratio=seconds / best[0],
        best_features=features_of(best[1]),
        best_seconds=best[0],
        search_seconds=search_seconds,
    )


def main(
    seconds: Annotated[float, typer.Option(min=0.0, help="for how long to go on")] = 60.0,
    seed: Annotated[int, typer.Option(help="of the first problem")] = 0,
    count: Annotated[int | None, typer.Option(min=1, help="problems at most")] = None,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/optimality.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Compare the search with all plans of small spaces."""
    console = terminal()
    until = time.monotonic() + seconds
    found: list[Compared] = []
    number = seed
    while time.monotonic() < until and (count is None or number < seed + count):
        comparison = compare(number)
        if comparison is not None:
            found.append(comparison)
            if comparison.ratio > NEAR:
                console.print(
                    f"seed {comparison.seed}, {comparison.kind}: {comparison.ratio:.4f} times the "
                    "best, which has " + (", ".join(comparison.best_features) or "nothing special"),
                    highlight=False,
                )
        number += 1
    console.print(f"seeds {seed} to {number - 1}; nothing fits in {number - seed - len(found)}")
    console.print(_table(found))
    aims = [
        Aim(what="worst ratio", wanted=NEAR, got=_worst(found), at_least=False),
        Aim(what="plans over 1 %", wanted=0, got=_num_over(found), at_least=False),
    ]
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    write_json(json, {"problems": [asdict(comparison) for comparison in found]}, aims)
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


def _worst(found: list[Compared]) -> float:
    return max((comparison.ratio for comparison in found), default=1.0)


def _num_over(found: list[Compared]) -> int:
    return sum(comparison.ratio > NEAR for comparison in found)


def _table(found: list[Compared]) -> Table:
    groups: dict[str, list[Compared]] = defaultdict(list)
    for comparison in found:
        groups[comparison.kind].append(comparison)
        for feature in comparison.best_features:
            groups[f"the best has {feature}"].append(comparison)
    table = Table(title="times the best plan", title_justify="left")
    table.add_column("problems")
    figures: dict[str, Callable[[list[Compared]], str]] = {
        "number": lambda some: str(len(some)),
        "mean": lambda some: f"{sum(comparison.ratio for comparison in some) / len(some):.4f}",
        "worst": lambda some: f"{_worst(some):.4f}",
        "over 1 %": lambda some: str(_num_over(some)),
    }
    for heading in figures:
        table.add_column(heading, justify="right")
    for name in sorted(groups, key=lambda name: (name not in KINDS, name)):
        table.add_row(name, *(figure(groups[name]) for figure in figures.values()))
    if found:
        table.add_section()
        table.add_row("all", *(figure(found) for figure in figures.values()))
    return table


if __name__ == "__main__":
    typer.run(main)
