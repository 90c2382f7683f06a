"""Seconds of planning for more and more devices and layers; no device is used.

Processor time is counted, which other programs lengthen little: planning has one thread.

Models are transformers of GPT-3 1.3B's blocks, as many as are asked for. Clusters are machines of
up to eight devices:

    alike        H100
    two types    in each machine as many V100 as P100
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from evener.clusters import (
    ClusterDescription,
    PublishedModel,
    cluster_named,
    datasheet_profile,
    model_named,
)
from evener.errors import PlanError
from evener.planner import plan_profile
from evener.profile import Cluster, ClusterDevice, CostProfile, ModelCosts
from side_by_side.figures import Aim
from side_by_side.plot import Panel, write_svg

KINDS = ("alike", "two types")
NUM_DEVICES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
NUM_LAYERS = (8, 16, 26, 50, 100, 200, 400)
LAYERS = 26
"""Layers of the model for which the devices grow."""

DEVICES = 8
"""Devices of the cluster for which the layers grow."""

MOST_SECONDS = 60.0
"""Seconds within which a plan should be found."""

_IN_A_MACHINE = 8
_SAMPLES_PER_DEVICE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """Seconds of one search for a plan.

    Attributes:
        kind: Kind of the cluster, one of `KINDS`.
        num_devices: Number of devices.
        num_layers: Number of layers of the model.
        seconds: Processor seconds, the median of the rounds.
        layout: Description of the plan in words.
    """

    kind: str
    num_devices: int
    num_layers: int
    seconds: float
    layout: str


def cases() -> Iterator[tuple[str, int, int]]:
    """Yield kind, number of devices and number of layers of all that is timed."""
    for kind in KINDS:
        pairs = [(count, LAYERS) for count in NUM_DEVICES]
        pairs += [(DEVICES, count) for count in NUM_LAYERS]
        pairs.append((NUM_DEVICES[-1], NUM_LAYERS[-1]))
        for num_devices, num_layers in dict.fromkeys(pairs):
            yield kind, num_devices, num_layers


def timed(kind: str, num_devices: int, num_layers: int, *, rounds: int) -> Planning:
    """Find a plan as ``evener plan`` does, so many times, each in a process of its own."""
    case = (kind, num_devices, num_layers)
    # Whatever a search leaves in caches, the next one does not find.
    with ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1
    ) as fresh:
        found = [fresh.submit(plan_once, *case).result() for _ in range(rounds)]
    return Planning(
        kind=kind,
        num_devices=num_devices,
        num_layers=num_layers,
        seconds=statistics.median(seconds for seconds, _ in found),
        layout=found[0][1],
    )


def plan_once(kind: str, num_devices: int, num_layers: int) -> tuple[float, str]:
    """Return the seconds of the processor to find a plan, and its layout or that nothing fits."""
    profile = profile_of(kind, num_devices, num_layers)
    began = time.process_time()
    try:
        layout = plan_profile(profile, _SAMPLES_PER_DEVICE * num_devices).plan.layout
    except PlanError:
        layout = "fits nowhere"
    return time.process_time() - began, layout


def profile_of(kind: str, num_devices: int, num_layers: int) -> CostProfile:
    """Return the costs of a transformer on a cluster, from datasheets."""
    published = model_named("gpt3-1.3b")
    return datasheet_profile(
        dataclasses.replace(published, costs=_with_layers(published, num_layers)),
        _with_devices(kind, num_devices),
    )


def _with_layers(published: PublishedModel, num_layers: int) -> ModelCosts:
    first, block, *_, last = published.costs.layers
    blocks = [dataclasses.replace(block, name=f"block_{k}") for k in range(num_layers - 2)]
    return dataclasses.replace(published.costs, layers=(first, *blocks, last))


def _with_devices(kind: str, num_devices: int) -> ClusterDescription:
    described = cluster_named("h100-128x8" if kind == KINDS[0] else "v100-8-p100-8")
    types = list(dict.fromkeys(device.type for device in described.cluster.devices))
    memory = {device.type: device.memory_bytes for device in described.cluster.devices}
    num_machines = -(-num_devices // _IN_A_MACHINE)
    devices = tuple(
        ClusterDevice(
            name=f"worker:{k // _IN_A_MACHINE}/gpu:{k % _IN_A_MACHINE}"
            if num_machines > 1
            else f"gpu:{k}",
            type=types[k % len(types)],
            memory_bytes=memory[types[k % len(types)]],
            machine=k // _IN_A_MACHINE,
        )
        for k in range(num_devices)
    )
    cluster = Cluster(
        devices=devices,
        machines=described.cluster.machines[:1] * num_machines,
        network=described.cluster.network,
        name=kind,
    )
    return dataclasses.replace(described, cluster=cluster)


def growth_figures(
    console: Console, *, plot: Path, rounds: int
) -> tuple[dict[str, Any], list[Aim]]:
    """Time all cases, print them and plot them; return the figures and what they should show.

    Args:
        console: Console that shows the table.
        plot: SVG file to write.
        rounds: Number of searches for each plan.
    """
    found = measure_growth(console, rounds=rounds)
    write_svg(plot, panels(found), up="seconds of the processor")
    console.print(f"plot: {plot}")
    longest = max(search.seconds for search in found)
    aim = Aim(what="seconds to plan, most", wanted=MOST_SECONDS, got=longest, at_least=False)
    return {"measured": True, "times": [asdict(search) for search in found]}, [aim]


def measure_growth(console: Console, *, rounds: int) -> list[Planning]:
    """Time all cases, and print them."""
    listed = track([*cases()], "planning", console=console, transient=True)
    found = [timed(*case, rounds=rounds) for case in listed]
    table = Table(title="seconds to find a plan, of the processor", title_justify="left")
    for heading in ("devices", "layers", *KINDS):
        table.add_column(heading, justify="right")
    by_case = {(search.kind, search.num_devices, search.num_layers): search for search in found}
    for num_devices, num_layers in dict.fromkeys(
        (search.num_devices, search.num_layers) for search in found
    ):
        cells = (by_case[kind, num_devices, num_layers] for kind in KINDS)
        table.add_row(
            f"{num_devices:,}",
            str(num_layers),
            *(f"{search.seconds:.2f}, {search.layout}" for search in cells),
        )
    console.print(table)
    return found


def panels(found: Sequence[Planning]) -> list[Panel]:
    """Return the two parts of the plot: over the devices, and over the layers."""
    by_devices = [search for search in found if search.num_layers == LAYERS]
    by_layers = [search for search in found if search.num_devices == DEVICES]
    return [
        Panel(
            title=f"{LAYERS} layers",
            across="devices",
            lines={
                kind: [
                    (search.num_devices, search.seconds)
                    for search in by_devices
                    if search.kind == kind
                ]
                for kind in KINDS
            },
        ),
        Panel(
            title=f"{DEVICES} devices",
            across="layers",
            lines={
                kind: sorted(
                    (search.num_layers, search.seconds)
                    for search in by_layers
                    if search.kind == kind
                )
                for kind in KINDS
            },
        ),
    ]
