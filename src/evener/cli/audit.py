"""``evener audit``: the placement of one training step, and its copies between devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from evener.cli.options import DevicesOption, NoGpuNamesOption, TimeLimitOption
from evener.cli.script_args import ArgsArgument, AsModuleOption, args_of_script

_DEFAULT_LIMIT_SECONDS = 300.0


def audit(
    context: typer.Context,
    *,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION|SCRIPT",
            show_default=False,
            help="A Python file that trains, or a function of a module.",
        ),
    ],
    args: ArgsArgument = None,
    as_module: AsModuleOption = False,
    devices: DevicesOption = None,
    no_gpu_names: NoGpuNamesOption = False,
    assume_gpus: Annotated[
        bool,
        typer.Option(
            "--assume-gpus",
            help="Check for each operation that requests no device whether it can run on a GPU. "
            "Works without a GPU.",
        ),
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            metavar="N",
            help="Batch size to use for None in an input_signature.",
        ),
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(
            "--graph",
            metavar="FILE",
            help="Draw the devices and the transfers between them to a .svg or .dot file.",
        ),
    ] = None,
    time_limit: TimeLimitOption = _DEFAULT_LIMIT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; sizes are in bytes.")
    ] = False,
) -> None:
    """Show the device of each operation of a training step, and why. The step is not executed."""
    from evener.cli.status import status
    from evener.devices.spec import spec_from
    from evener.subprocess.audit import audit_in_subprocess, request_for, script_of
    from evener.versions import check_installed

    if graph is not None and graph.suffix not in (".svg", ".dot"):
        raise typer.BadParameter(f"{graph} must end in .svg or .dot", param_hint="'--graph'")
    if graph is not None and (graph.is_dir() or not os.access(graph.parent, os.W_OK)):
        raise typer.BadParameter(f"{graph} cannot be written", param_hint="'--graph'")
    # Before the subprocess imports TensorFlow, which takes seconds.
    spec = spec_from(devices, os.environ)
    script = script_of(target, as_module=as_module)
    if script is not None:
        args = args_of_script(context, args, script)
    request = request_for(
        target,
        tuple(args or ()),
        script=script,
        devices=None if spec.source == "default" else str(spec),
        assume_gpus=assume_gpus,
        batch_size=batch_size,
        gpu_names=not no_gpu_names,
    )
    check_installed()
    with status(f"Running {target} up to its first training step"):
        found = audit_in_subprocess(request, limit_seconds=time_limit)
    if as_json:
        print(found.to_json())
    else:
        from evener.auditing.table import print_audit

        print_audit(found)
    if graph is not None:
        from evener.cli.usage import write_result
        from evener.report.traffic import draw

        # With --json, standard output has the audit alone, from which it can be drawn again.
        write_result(graph, draw(found, graph.suffix), is_printed=as_json)
    raise typer.Exit(1 if found.findings else 0)
