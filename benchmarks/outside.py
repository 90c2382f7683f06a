"""How evener scales from one core to two, beside Keras on JAX with its ``DataParallel``.

JAX needs an environment of its own, whose Python is named: ``pip install jax keras==3.15.1``.
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

EVENER, JAX = "evener", "Keras on JAX, DataParallel"
_PROGRAM = Path(__file__).parent / "side_by_side" / "jax_process.py"


def of_jax(python: Path, name: str, num_devices: int, seconds: float) -> float:
    """Return samples per second of Keras on JAX, in a process of its own.

    Raises:
        RuntimeError: If it fails; the message is what it printed.
    """
    done = subprocess.run(
        [str(python), str(_PROGRAM), name, str(num_devices), str(seconds)],
        env={**os.environ, "PYTHONPATH": str(_PROGRAM.parents[1])},
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


def measure(python: Path, name: str, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Return samples per second of everybody on one and on two devices, by round."""
    cores = sorted(os.sched_getaffinity(0))
    workers = {
        1: Worker(contenders.Fit, num_devices=1, cores={cores[0]}),
        2: Worker(contenders.Fit, num_devices=2, make_strategy=contenders.evener_measured),
    }
    found: dict[str, Any] = {who: {1: [], 2: []} for who in (EVENER, JAX)}
    with closing(*workers.values()):
        for worker in workers.values():
            worker.call("prepare", name, "adam")
            worker.call("run", 5)
        for _ in range(rounds):
            for num_devices, worker in workers.items():
                found[EVENER][num_devices].append(of_worker(worker, name, seconds))
                found[JAX][num_devices].append(of_jax(python, name, num_devices, seconds))
    for speeds in found.values():
        speeds["efficiency"] = [b / (2 * a) for a, b in zip(speeds[1], speeds[2], strict=True)]
    return found


def main(
    jax_python: Annotated[Path, typer.Option(exists=True, help="Python with JAX and Keras")],
    models: Annotated[str, typer.Option(help="comma list of problems")] = "mlp,cnn,transformer",
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="length of a turn")] = 2.0,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path("results/outside.json"),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Compare how speed scales from one core to two."""
    console = terminal()
    figures: dict[str, Any] = {}
    aims: list[Aim] = []
    for name in models.split(","):
        if name not in PROBLEMS:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(PROBLEMS)}")
        found = measure(jax_python, name, rounds=rounds, seconds=seconds)
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
        what = f"{name}, scaling efficiency over that of JAX"
        aims.append(Aim(what=what, wanted=1.0, got=medians[EVENER] / medians[JAX]))
    for aim in aims:
        console.print(str(aim), highlight=False)
    write_json(json, figures, aims)
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
