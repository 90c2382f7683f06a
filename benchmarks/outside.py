"""Speed of evener on one core and on two, beside Keras on JAX and PyTorch.

Keras on JAX (``DataParallel``) and PyTorch (``DistributedDataParallel`` over gloo) need
environments of their own, whose Pythons are named: with ``jax`` and ``keras==3.15.1``; with
``torch`` for CPUs and ``numpy``.
Scaling efficiency is the speed on two devices of one core each over twice the speed on one.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side import contenders
from side_by_side.figures import Aim, spread, terminal, write_json
from side_by_side.problems import PROBLEMS
from side_by_side.workers import Worker, closing

EVENER, JAX, TORCH = "evener", "Keras on JAX, DataParallel", "PyTorch, DDP over gloo"
_FOLDER = Path(__file__).parent
_PROGRAMS = {JAX: "jax_process.py", TORCH: "torch_process.py"}


def of_process(who: str, python: Path, name: str, num_devices: int, seconds: float) -> float:
    """Return samples per second of another framework, in a process of its own.

    Raises:
        RuntimeError: If it fails; the message is what it printed.
    """
    done = subprocess.run(
        [
            str(python),
            str(_FOLDER / "side_by_side" / _PROGRAMS[who]),
            *(name, str(num_devices), str(seconds)),
        ],
        env={**os.environ, "PYTHONPATH": str(_FOLDER)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{python} failed on {name}:\n{done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1])["samples_per_second"])


def of_worker(worker: Worker, name: str, seconds: float) -> float:
    """Return samples per second of a worker that has prepared a problem."""
    first = worker.call("run", 5)
    num_steps = max(8, round(seconds * first.num_steps / first.seconds))
    ran = worker.call("run", num_steps)
    return PROBLEMS[name].batch_size * ran.num_steps / ran.seconds


def measure(pythons: dict[str, Path], name: str, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Return samples per second of everybody on one and on two devices, by round."""
    cores = sorted(os.sched_getaffinity(0))
    workers = {
        1: Worker(contenders.Fit, num_devices=1, cores={cores[0]}),
        2: Worker(contenders.Fit, num_devices=2, make_strategy=contenders.evener_measured),
    }
    found: dict[str, Any] = {who: {1: [], 2: []} for who in (EVENER, *pythons)}
    with closing(*workers.values()):
        for worker in workers.values():
            worker.call("prepare", name, "adam")
            worker.call("run", 5)
        for _ in range(rounds):
            for num_devices, worker in workers.items():
                found[EVENER][num_devices].append(of_worker(worker, name, seconds))
                for who, python in pythons.items():
                    speed = of_process(who, python, name, num_devices, seconds)
                    found[who][num_devices].append(speed)
    for speeds in found.values():
        speeds["efficiency"] = [b / (2 * a) for a, b in zip(speeds[1], speeds[2], strict=True)]
    return found


def main(
    jax_python: Annotated[
        Path | None, typer.Option(exists=True, help="Python with JAX and Keras")
    ] = None,
    torch_python: Annotated[
        Path | None, typer.Option(exists=True, help="Python with PyTorch and NumPy")
    ] = None,
    models: Annotated[str, typer.Option(help="comma list of problems")] = "mlp,cnn,transformer",
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="length of a turn")] = 2.0,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path("results/outside.json"),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Compare how speed scales from one core to two."""
    given = {JAX: jax_python, TORCH: torch_python}
    pythons = {who: python for who, python in given.items() if python is not None}
    if not pythons:
        raise typer.BadParameter("name at least one of them", param_hint="--jax-python")
    console = terminal()
    figures: dict[str, Any] = {}
    aims: list[Aim] = []
    for name in models.split(","):
        if name not in PROBLEMS:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(PROBLEMS)}")
        found = measure(pythons, name, rounds=rounds, seconds=seconds)
        figures[name] = found
        table = Table(title=f"{name}, samples/s", title_justify="left")
        for heading in ("contender", "one device", "two devices", "efficiency"):
            table.add_column(heading, justify="left" if heading == "contender" else "right")
        medians = {}
        for who, speeds in found.items():
            medians[who] = spread(speeds["efficiency"]).median
            cells = (spread(speeds[count]).text() for count in (1, 2))
            table.add_row(who, *cells, spread(speeds["efficiency"]).text(3))
        console.print(table)
        for who in pythons:
            what = f"{name}, scaling efficiency over that of {who}"
            aims.append(Aim(what=what, wanted=1.0, got=medians[EVENER] / medians[who]))
    for aim in aims:
        console.print(str(aim), highlight=False)
    write_json(json, figures, aims)
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
