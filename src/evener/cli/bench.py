"""``evener bench``: the steps of a script under several layouts, on this machine."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evener.cli.options import DEFAULT_LIMIT_SECONDS, DevicesOption
from evener.cli.script_args import ArgsArgument, AsModuleOption, args_of_script

if TYPE_CHECKING:
    from evener.bench.request import TimedRun
    from evener.bench.turns import Measured
    from evener.plan import Plan
    from evener.run.script import Script


def bench(
    context: typer.Context,
    *,
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT",
            show_default=False,
            help="A Python file that trains, or with -m a module.",
        ),
    ],
    args: ArgsArgument = None,
    as_module: AsModuleOption = False,
    devices: DevicesOption = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=1, help="Number of runs of each layout.")
    ] = 3,
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            metavar="N",
            min=5,
            max=200,
            help="Number of timed steps of a run, after 10 others.",
        ),
    ] = 40,
    xla: Annotated[
        bool,
        typer.Option("--xla", help="Measure each layout with XLA and without: jit_compile."),
    ] = False,
    time_limit: Annotated[
        float,
        typer.Option("--time-limit", metavar="SECONDS", min=1, help="Time limit of a run."),
    ] = DEFAULT_LIMIT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Time the steps of a script on one device, and under several layouts of all devices.

    Each layout runs in a process of its own, in turns, up to its last timed step. Prints a table,
    what limits the fastest layout, and the command to use.
    """
    from evener.bench.contenders import contenders
    from evener.bench.request import TimedRun
    from evener.bench.table import BenchResult, print_result
    from evener.bench.turns import measure
    from evener.run.script import read
    from evener.terminal import standard_output

    found = read(script, as_module=as_module)
    args = args_of_script(context, args, found)
    names = _devices(devices)
    request = TimedRun(
        target=script, is_module=as_module, args=tuple(args), devices=devices, num_steps=steps
    )
    rows = measure(
        contenders(
            names,
            spec=devices,
            words=" ".join([found.words, *map(shlex.quote, args)]),
            planned=_planned(found, args, devices, time_limit),
            with_xla=xla,
        ),
        request,
        num_rounds=rounds,
        limit_seconds=time_limit,
        tell=lambda text: typer.echo(f"evener: {text}", err=True),
    )
    _check_measured(rows)
    limit, record = _limit(rows, request, time_limit)
    result = BenchResult(rows=tuple(rows), limit=limit, record=record)
    if as_json:
        typer.echo(result.to_json())
        return
    print_result(result, standard_output())


def _devices(spec: str | None) -> list[str]:
    """Return the names of the devices, two or more."""
    from evener.cli.quiet import quiet_tensorflow
    from evener.collector import paused_collector
    from evener.devices import inventory
    from evener.errors import RunError

    with quiet_tensorflow(os.environ), paused_collector():
        names = [device.name for device in inventory(spec).used]
    if len(names) < 2:
        raise RunError(
            "RUN-108",
            f"evener bench compares layouts of several devices, and there is {len(names)}.",
            why=f"The devices are {', '.join(names) or 'none'}.",
            fix="Give two or more: --devices gpu:0,gpu:1, or --devices cpu:2 to try it.",
        )
    return names


def _planned(script: Script, args: list[str], devices: str | None, time_limit: float) -> Plan | str:
    """Return the best plan of the planner, or the reason why there is none."""
    from evener.errors import EvenerError
    from evener.subprocess.script_plan import plan_script

    typer.echo("evener: measuring the layers for a plan", err=True)
    try:
        return plan_script(
            script, args, devices=devices, gpu_names=True, time_limit=time_limit
        ).plan
    except EvenerError as error:
        return f"{error.code}: {error.what}"


def _check_measured(rows: list[Measured]) -> None:
    from evener.errors import RunError

    if not any(row.rounds for row in rows):
        problems = "; ".join(f"{row.contender.name}: {row.problem}" for row in rows)
        raise RunError(
            "RUN-109",
            "No layout could be measured.",
            why=f"{problems}.",
            fix="Run the script alone: evener run SCRIPT. It needs 15 training steps or more.",
        )


def _limit(rows: list[Measured], request: TimedRun, time_limit: float) -> tuple[str, str]:
    """Record the fastest layout of several devices; return what limits it, and the folder."""
    from evener.bench.limits import limit_of
    from evener.bench.table import fastest
    from evener.bench.turns import run_once
    from evener.errors import RunError
    from evener.recording.reading import read_records
    from evener.recording.summary import summarise

    best = fastest([row for row in rows[1:] if row.contender.kind == "evener"])
    if best is None:
        return "", ""
    folder = str(Path(tempfile.mkdtemp(prefix="evener-bench-")) / "record")
    typer.echo(f"evener: recording {best.contender.name}", err=True)
    times = run_once(best.contender, request, limit_seconds=time_limit, record=folder)
    try:
        (record,) = read_records(Path(folder))
    except RunError as error:
        return f"Not known: {times.problem or error.what}", ""
    return limit_of(summarise(record)), folder
