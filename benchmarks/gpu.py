"""evener on one GPU, and on the same GPU cut into two logical devices.

Two devices that are one card share its speed, so a step on both can at best be as fast as the
same step on one. What is shown is what partitioning costs on a GPU, and memory on each device
beside what evener says that it needs; and for each contender where the time of its step goes.

    make gpu-bench                            the tests for GPUs, then everything, in ten minutes
    python benchmarks/gpu.py --stand-ins      the same on CPUs, to see that it works
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side import contenders
from side_by_side.chains import plan_of
from side_by_side.figures import paired, spread, terminal, write_json
from side_by_side.problems import CHAINS, PROBLEMS
from side_by_side.step_profile import table_of_profiles
from side_by_side.workers import Worker, WorkerError, closing

from evener.base.text import format_bytes

XLA, KERAS, PLAIN = "Keras fit, XLA", "Keras fit", "plain loop"
NUM_MICRO_BATCHES = 4
TESTS = Path(__file__).parents[1] / "tests" / "gpu"
MOST_SECONDS_OF_TESTS = 240


def reduced_on_one(devices: list[str]) -> Any:
    """Return MirroredStrategy; NCCL refuses two devices that are one card."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def in_stages(devices: list[str], *, name: str, recompute: tuple[str, ...] = ()) -> Any:
    """Return evener's strategy with a stage on every device."""
    import evener

    plan = plan_of(
        CHAINS[name],
        [device.lower() for device in devices],
        num_micro_batches=NUM_MICRO_BATCHES,
        in_flight=len(devices),
        recompute=recompute,
    )
    return evener.Strategy(plan)


def start_workers(name: str, limit_mib: int, *, stand_ins: bool) -> dict[str, Worker]:
    """Start a process for every contender of a problem."""
    single: dict[str, Any] = {"gpu_limits_mib": [limit_mib]}
    capped: dict[str, Any] = {"gpu_limits_mib": [limit_mib, limit_mib // 2]}
    environment = {"CUDA_VISIBLE_DEVICES": "0"}
    if stand_ins:
        single, capped, environment = {"num_devices": 1}, {"num_devices": 2}, {}
    fit = partial(Worker, contenders.Fit, environment=environment)
    even = contenders.evener_even
    loop = {} if stand_ins else single
    workers = {
        PLAIN: Worker(contenders.PlainLoop, environment=environment, **loop),
        KERAS: fit(**single, jit_compile=False),
        XLA: fit(**single, jit_compile=True),
        "evener": fit(**single, make_strategy=even, jit_compile=False),
        "evener, XLA": fit(**single, make_strategy=even, jit_compile=True),
        "evener, in two": fit(**capped, make_strategy=even, jit_compile=False),
        "evener, in two, XLA": fit(**capped, make_strategy=even, jit_compile=True),
        "MirroredStrategy, in two": fit(**capped, make_strategy=reduced_on_one, jit_compile=False),
    }
    if name in CHAINS and not stand_ins:
        for title, recompute in {"stages": (), "recomputed": ("block_*",)}.items():
            make = partial(in_stages, name=name, recompute=recompute)
            workers[f"evener, {title}"] = fit(**capped, make_strategy=make, jit_compile=False)
    return workers


def measure(
    workers: dict[str, Worker], name: str, *, rounds: int, seconds: float, memory: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Let all contenders train in turns; return their figures, and the errors of those that fail.

    Every step of ``run`` is timed between two moments at which the GPU had nothing to do.
    """
    failed: dict[str, str] = {}

    def ask(who: list[str], method: str, *args: Any) -> dict[str, Any]:
        """Ask several at once."""
        for contender in who:
            workers[contender].send(method, *args)
        answers = {}
        for contender in who:
            try:
                answers[contender] = workers[contender].receive()
            except WorkerError as error:
                failed[contender] = str(error)
        return answers

    # Tracing and compiling need no GPU: all do it at once.
    running = list(ask(list(workers), "prepare", name, "adam"))
    running = list(ask(running, "run", 3))
    if KERAS not in running:
        raise typer.BadParameter(f"{KERAS} failed on {name}:\n{failed[KERAS]}")
    figures: dict[str, Any] = {
        contender: {"seconds": [], "call_seconds": []} for contender in running
    }
    num_steps = {}
    for contender in running:
        ran = workers[contender].call("run", 10)
        num_steps[contender] = max(10, math.ceil(seconds * ran.num_steps / ran.seconds))
    for turn in range(rounds):
        for contender in running[turn % len(running) :] + running[: turn % len(running)]:
            ran = workers[contender].call("run", num_steps[contender])
            figures[contender]["seconds"].append(ran.seconds / ran.num_steps)
            if ran.call_seconds is not None:
                figures[contender]["call_seconds"].append(ran.call_seconds)
    # One at a time: they share the GPU.
    for contender in running:
        figures[contender]["profile"] = workers[contender].call("profile")
    if not memory:
        return figures, failed
    for key in ("peak_bytes", "predicted_bytes"):
        for contender, value in ask(
            [contender for contender in running if contender != PLAIN], key
        ).items():
            figures[contender][key] = value
    return figures, failed


def table_of(name: str, figures: dict[str, Any]) -> Table:
    """Return the table of one problem."""
    table = Table(title=f"{name}, batch {PROBLEMS[name].batch_size}", title_justify="left")
    table.add_column("contender", no_wrap=True)
    for heading in ("step, ms", "min", "max", "/ Keras fit", "call, ms", "peak", "predicted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for contender, found in figures.items():
        own = spread([value * 1e3 for value in found["seconds"]])
        ratio = paired(found["seconds"], figures[KERAS]["seconds"]).median
        bytes_of = [
            ", ".join(format_bytes(value) for value in found.get(key, {}).values())
            for key in ("peak_bytes", "predicted_bytes")
        ]
        numbers = (f"{value:.2f}" for value in (own.median, own.least, own.most))
        calls = found["call_seconds"]
        call = f"{statistics.median(calls) * 1e3:.2f}" if calls else ""
        table.add_row(contender, *numbers, f"{ratio:.3f}", call, *bytes_of)
    return table


def main(
    models: Annotated[str, typer.Option(help="comma list of problems")] = (
        "wide_mlp,resnet50,language_model"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="turns of every contender")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="length of a turn")] = 1.0,
    limit_mib: Annotated[
        int, typer.Option(min=64, help="memory of the first device; the second has half")
    ] = 5000,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="no problem is begun after so many minutes")
    ] = 8.0,
    tests: Annotated[bool, typer.Option(help="run the tests for GPUs first")] = False,
    stand_ins: Annotated[
        bool, typer.Option("--stand-ins", help="logical CPUs instead of a GPU")
    ] = False,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path("results/gpu.json"),
) -> None:
    """Compare evener with Keras on one GPU, whole and cut in two, in turns."""
    begin = time.monotonic()
    names = models.split(",")
    if unknown := [name for name in names if name not in PROBLEMS]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(PROBLEMS)}")
    console = terminal()
    is_right = not tests or tests_pass()
    figures: dict[str, Any] = {}
    for name in names:
        if time.monotonic() - begin > minutes * 60:
            console.print(f"{name}: not measured, as {minutes:g} minutes are over")
            continue
        workers = start_workers(name, limit_mib, stand_ins=stand_ins)
        with closing(*workers.values()):
            found, failed = measure(
                workers, name, rounds=rounds, seconds=seconds, memory=not stand_ins
            )
        profiles = {contender: value.pop("profile") for contender, value in found.items()}
        figures[name] = {"contenders": found, "failed": failed}
        figures[name]["profiles"] = {
            contender: [dataclasses.asdict(stream) for stream in streams]
            for contender, streams in profiles.items()
        }
        console.print(table_of(name, found))
        console.print(table_of_profiles(f"{name}, a step by TensorFlow's profiler", profiles))
        for contender, error in failed.items():
            console.print(f"{contender} failed: {error.strip().splitlines()[-1]}", highlight=False)
        medians = {
            contender: statistics.median(value["seconds"]) for contender, value in found.items()
        }
        figures[name]["median_seconds"] = medians
        write_json(json, figures, [])
    console.print(f"figures: {json}")
    if not is_right:
        raise SystemExit("The tests for GPUs failed: the figures say nothing.")


def tests_pass() -> bool:
    """Run the short tests for GPUs; return whether they pass."""
    words = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider"]
    try:
        return not subprocess.run([*words, str(TESTS)], timeout=MOST_SECONDS_OF_TESTS).returncode
    except subprocess.TimeoutExpired:
        print(f"The tests for GPUs took more than {MOST_SECONDS_OF_TESTS} seconds.")
        return False


if __name__ == "__main__":
    typer.run(main)
