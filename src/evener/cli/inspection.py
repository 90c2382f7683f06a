"""The commands that look and train nothing: devices, audit, estimate and report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from evener.cli import conventions
from evener.cli.conventions import args_of_script, argument, check_writable, option, status
from evener.errors import RunError, did_you_mean


def devices(
    *, as_json: conventions.JsonOption = False, spec: conventions.DevicesOption = None
) -> None:
    """List all devices, and the reason for each one that is not used."""
    from evener.base.libraries import paused_collector
    from evener.devices import inventory
    from evener.devices.machine import import_tensorflow
    from evener.devices.spec import spec_from

    # Before TensorFlow is imported, which takes seconds.
    spec_from(spec, os.environ)
    with status("Looking for devices"):
        with conventions.quiet_tensorflow(os.environ), paused_collector():
            import_tensorflow()
        found = inventory(spec)
    if as_json:
        print(found.to_json())
        return
    from evener.devices.inventories import print_inventory

    print_inventory(found)


def audit(
    context: typer.Context,
    *,
    target: Annotated[
        str,
        argument(
            "MODULE:FUNCTION|SCRIPT",
            "A Python file that trains, or a function of a module.",
            show_default=False,
        ),
    ],
    args: conventions.ArgsArgument = None,
    as_module: conventions.AsModuleOption = False,
    devices: conventions.DevicesOption = None,
    no_gpu_names: conventions.NoGpuNamesOption = False,
    assume_gpus: Annotated[
        bool,
        option(
            "--assume-gpus",
            "Check for each operation that requests no device whether it can run on a GPU. "
            "Works without a GPU.",
        ),
    ] = False,
    batch_size: Annotated[
        int | None,
        option("--batch-size N", "Batch size to use for None in an input_signature.", min=1),
    ] = None,
    time_limit: conventions.TimeLimitOption = 300.0,
    as_json: conventions.JsonOption = False,
) -> None:
    """Show the device of each operation of a training step, and why. The step is not executed."""
    from evener.base.libraries import check_installed
    from evener.devices.spec import spec_from
    from evener.run.first_step import audit_in_subprocess, audit_request, read_target

    # Before the subprocess imports TensorFlow, which takes seconds.
    spec = spec_from(devices, os.environ)
    script = read_target(target, as_module=as_module)
    if script is not None:
        args = args_of_script(context, args, script)
    request = audit_request(
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
        from evener.auditing import print_audit

        print_audit(found)
    raise typer.Exit(1 if found.findings or found.idle_devices else 0)


def estimate(
    context: typer.Context,
    *,
    target: Annotated[
        str,
        argument(
            "SCRIPT|MODEL",
            "A Python file that trains, or a published model, such as bert-large.",
            show_default=False,
        ),
    ],
    args: conventions.ArgsArgument = None,
    as_module: conventions.AsModuleOption = False,
    batch_size: Annotated[
        int | None,
        option(
            "--batch-size N",
            "Samples of the global batch. Default: the batch of the script.",
            min=1,
            max=2**20,
        ),
    ] = None,
    num_devices: Annotated[
        int,
        option(
            "--num-devices N",
            "Number of devices to divide the batch, the weights and the optimizer state over.",
            min=1,
            max=256,
        ),
    ] = 1,
    time_limit: conventions.TimeLimitOption = conventions.DEFAULT_LIMIT_SECONDS,
    as_json: conventions.JsonOption = False,
) -> None:
    """Estimate the memory that training needs, by kind, and the largest batch for each device.

    A script runs on the CPU up to its first training step, which is traced but not executed.
    """
    from evener.planner.published_models import model_named, model_names
    from evener.report.estimated import Estimated, print_estimated

    is_model = target in model_names()
    if is_model and not as_module:
        if args:
            raise typer.BadParameter(
                f"the model {target} takes no arguments; options go before it: {' '.join(args)}"
            )
        model, own_size = model_named(target).costs, None
    else:
        if not (as_module or target.endswith(".py") or Path(target).exists()):
            known = model_names()
            raise RunError(
                "RUN-042",
                f"{target} is neither a script nor a published model.{did_you_mean(target, known)}",
                why=f"There is no such file; the models described with evener are "
                f"{', '.join(known)}.",
                fix="Pass the path of a Python file that trains, or one of these names.",
            )
        from evener.run.first_step import counted_memory
        from evener.run.script import read

        script = read(target, as_module=as_module)
        args = args_of_script(context, args, script)
        with status(f"Tracing the first training step of {script.given}"):
            model, own_size = counted_memory(script, args, time_limit=time_limit)
    size = batch_size or own_size
    if size is None:
        raise RunError(
            "RUN-041",
            f"The memory of {target} depends on a batch size that is not known.",
            why="A published model does not define a batch size."
            if is_model
            else "The script trains on batches whose size is not known before it runs.",
            fix=f"evener estimate --batch-size N {target}",
        )
    found = Estimated(model=model, batch_size=size, num_devices=num_devices)
    if as_json:
        print(found.to_json())
    else:
        print_estimated(found)


def report(
    run: Annotated[Path, argument("RUN", "The folder of a recorded run.", show_default=False)],
    other: Annotated[
        Path | None, argument("[RUN2]", "Another run, to be shown beside it.", show_default=False)
    ] = None,
    *,
    out: Annotated[
        Path | None, option("--out FILE", "File for the page. Default: report.html in RUN.")
    ] = None,
    trace: Annotated[
        Path | None,
        option(
            "--trace FILE", "Write the recorded steps as a trace for Perfetto instead of a page."
        ),
    ] = None,
    as_json: Annotated[
        bool, option("--json", "Print the figures of each run, one JSON object a line.")
    ] = False,
) -> None:
    """Show a recorded run, or two side by side, as one HTML page that needs no network.

    Record a run with evener run --record, evener launch --record or evener.record.
    """
    from evener.recording.reading import read_records, summarise

    folders = [run, *([other] if other is not None else [])]
    if trace is not None and other is not None:
        raise typer.BadParameter("a trace has one run", param_hint="'--trace'")
    if trace is not None and (as_json or out is not None):
        raise typer.BadParameter("excludes --out and --json", param_hint="'--trace'")
    check_writable(trace)
    check_writable(out)
    runs = [read_records(folder) for folder in folders]
    if as_json:
        for record in (record for records in runs for record in records):
            typer.echo(summarise(record).to_json())
        return
    if trace is not None:
        from evener.report.trace import trace_of

        file, data = trace, trace_of(runs[0])
    else:
        from evener.report.page import render_page

        file = run / "report.html" if out is None else out
        check_writable(file)
        data = render_page(runs).encode()
    try:
        file.write_bytes(data)
    except OSError as error:
        raise RunError(
            "RUN-106",
            f"The report cannot be written to {file}.",
            why=f"{error.strerror or error}.",
            fix="Give another file, with --out or --trace.",
        ) from error
    typer.echo(f"{file}: open it in Perfetto" if file is trace else str(file))
