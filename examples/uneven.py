"""Train a transformer on two devices of different memory; the smaller cannot train it alone.

    python examples/uneven.py
    python examples/uneven.py --devices gpu:0@2GiB,gpu:1@1GiB -- --width 512

It runs ``uneven_train.py``, a plain Keras script, with the commands of evener:

1. ``evener plan``: measures the layers, and finds the best plan within the memory of both
   devices.
2. Half of each batch on each device, as ``MirroredStrategy`` would do: it runs out of memory.
3. ``evener run --plan`` trains with the plan. The predicted and measured step times are compared.
4. One device, without a limit: the weights equal those of the plan, up to rounding.

Without ``--devices`` they are two stand-ins: logical CPUs of one thread each, of 120 and 60 MiB.
TensorFlow cannot limit the memory of each, but that of all tensors on the CPU together: in 2 and 3
they may use the sum of both. Words after ``--`` go to the script.

Exit codes: 0 fine; 1 if there is no plan, the halves fit, or the weights differ; 2 wrong usage; 130
after Ctrl-C.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from evener.base.text import format_bytes, format_seconds
from evener.devices.spec import DeviceSpec, SpecError, parse_spec
from evener.plan import Plan

SCRIPT = Path(__file__).with_name("uneven_train.py")
STAND_INS = "cpu:1@100MiB,cpu:1@50MiB"
# Rounding is 6e-8 for one operation in float32; 32 steps of Adam build on each other.
TOLERANCE = 1e-4
MEBIBYTE = 2**20


class Failed(Exception):
    """Something did not come out as it has to."""


def main(
    devices: Annotated[str, typer.Option(help="Two devices with memory sizes.")] = STAND_INS,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.")
    ] = None,
) -> None:
    """Plan and train a transformer on two devices of unlike memory."""
    try:
        spec = parse_spec(devices)
    except SpecError as error:
        raise typer.BadParameter(str(error)) from error
    caps = spec.stand_in_caps or tuple(gpu.cap_bytes for gpu in spec.gpus)
    if len(caps) < 2 or None in caps:
        raise typer.BadParameter(f"{devices} does not name two devices with a memory size each")
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        try:
            demonstrate(spec, list(args or []), Path(folder), console)
        except Failed as failed:
            console.print(f"[bold red]{failed}[/]", highlight=False)
            raise typer.Exit(1) from None


def demonstrate(spec: DeviceSpec, args: list[str], folder: Path, console: Console) -> None:
    """Show all four parts."""
    plan_file, report = folder / "plan.json", folder / "run.json"
    console.rule("1. Plan")
    evener("plan", "--devices", str(spec), "--out", str(plan_file), str(SCRIPT), *args)
    plan = Plan.from_json(plan_file.read_text(encoding="utf-8"))

    limited = memory_limit(spec)
    console.rule("2. Half of each batch on each device")
    halves = evener(
        *("run", "--devices", str(spec), "--shares", "even", str(SCRIPT), *args),
        environment=limited,
        is_quiet=True,
        may_fail=True,
    )
    last = [line for line in halves.splitlines() if "OOM" in line or "ran out of memory" in line]
    if not last:
        raise Failed("Both devices can hold half of a batch: give them less memory.")
    console.print(last[-1].strip()[:200], highlight=False)

    console.rule("3. The plan")
    planned = folder / "planned.npz"
    evener(
        *("run", "--plan", str(plan_file), "--report-file", str(report)),
        *(str(SCRIPT), "--weights", str(planned), *args),
        environment={**limited, "EVENER_DEVICES": str(spec)},
    )

    console.rule("4. One device, without a limit")
    alone = folder / "alone.npz"
    single = "cpu:1" if spec.kind == "cpu" else spec.gpus[0].name
    evener("run", "--devices", single, str(SCRIPT), "--weights", str(alone), *args)
    difference = most_different(planned, alone)
    show(plan, json.loads(report.read_text(encoding="utf-8")), difference, console)
    if difference > TOLERANCE:
        raise Failed(f"The weights differ by {difference:.1e}; {TOLERANCE:g} is allowed.")


def evener(
    *words: str,
    environment: dict[str, str] | None = None,
    is_quiet: bool = False,
    may_fail: bool = False,
) -> str:
    """Run a command of evener; return what it printed if it is quiet."""
    print(f"$ evener {' '.join(words)}", flush=True)
    ended = subprocess.run(
        [sys.executable, "-m", "evener", *words],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE if is_quiet else None,
        stderr=subprocess.STDOUT if is_quiet else None,
        text=True,
        errors="replace",
    )
    if ended.returncode and not may_fail:
        raise Failed(f"evener {words[0]} ended with exit code {ended.returncode}.")
    return ended.stdout or ""


def memory_limit(spec: DeviceSpec) -> dict[str, str]:
    """Return the environment in which TensorFlow refuses more than the memory of all stand-ins."""
    if spec.kind != "cpu":
        return {}
    limit = sum(spec.stand_in_caps) // MEBIBYTE
    return {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(limit)}


def most_different(weights: Path, other: Path) -> float:
    """Return the largest difference between two files of weights."""
    with np.load(weights) as mine, np.load(other) as theirs:
        return max(float(np.abs(mine[name] - theirs[name]).max()) for name in mine.files)


def show(plan: Plan, report: dict, difference: float, console: Console) -> None:
    """Print what was predicted beside what was measured."""
    console.rule("Predicted and measured")
    assert plan.predicted is not None
    steps = report["steps"]
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("", "predicted", "measured"):
        table.add_column(column)
    measured = format_seconds(steps["step_seconds"]) if steps else "too few steps"
    table.add_row("a step", format_seconds(plan.predicted.step_seconds), measured)
    for device, seconds in plan.predicted.busy_seconds.items():
        busy = format_seconds(steps["busy_seconds"][device]) if steps else ""
        table.add_row(f"{device} computes", format_seconds(seconds), busy)
    for device in plan.devices:
        needed = plan.predicted.peak_bytes[device.name]
        room = format_bytes(device.memory_bytes or 0)
        table.add_row(f"{device.name} needs", format_bytes(needed), f"has {room}")
    console.print(table)
    for rejected in plan.rejected:
        console.print(f"{rejected.layout}: {rejected.reason}", highlight=False)
    console.print(f"\nLargest difference of a weight from one device: {difference:.1e}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
