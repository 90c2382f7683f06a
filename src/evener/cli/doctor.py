"""``evener doctor``: mistakes in a training program."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from evener.cli.conventions import (
    ArgsArgument,
    AsModuleOption,
    DevicesOption,
    NoGpuNamesOption,
    args_of_script,
)


def doctor(
    context: typer.Context,
    *,
    script: Annotated[
        str | None,
        typer.Argument(metavar="SCRIPT", show_default=False, help="The program to check."),
    ] = None,
    args: ArgsArgument = None,
    as_module: AsModuleOption = False,
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="Also run the program for a few steps, in a subprocess, and watch it."
        ),
    ] = False,
    devices: DevicesOption = None,
    no_gpu_names: NoGpuNamesOption = False,
    steps: Annotated[
        int,
        typer.Option(min=2, metavar="N", help="Number of training steps to watch with --run."),
    ] = 20,
    time_limit: Annotated[
        float,
        typer.Option("--time-limit", min=1, metavar="SECONDS", help="Time limit for --run."),
    ] = 120,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            min=0,
            metavar="N",
            show_default=False,
            help="Number of GPUs to assume. Default: those of this machine, or 2 if it has none.",
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            "--gpu-memory",
            metavar="SIZE",
            show_default=False,
            help="Memory of each GPU to assume, such as 12GiB; with --run, the memory of a step is "
            "compared with it. Default: that of this machine's GPUs.",
        ),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            "--select",
            metavar="CODES",
            help="Report only these rules: codes or prefixes of codes, separated by commas, for "
            "example DOC-201,DOC-4.",
        ),
    ] = None,
    ignore: Annotated[
        str | None,
        typer.Option("--ignore", metavar="CODES", help="Do not report these rules."),
    ] = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Print the fixes that are certain as a unified diff; findings go to standard "
            "error.",
        ),
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="With --fix: write the fixes to the files.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="CODE", help="Print the help page for a code and exit."),
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List all rules and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find mistakes in a training program; print the line, the reason and the fix of each."""
    if explain is not None:
        _explain(explain)
        return
    if rules:
        _list_rules(as_json=as_json)
        return
    if script is None:
        raise typer.BadParameter("give the program to check", param_hint="'SCRIPT'")
    args = _args_of(context, args, script, as_module=as_module)
    if args and not run:
        raise typer.BadParameter(
            f"{args[0]!r} is for the program, which is only run with --run", param_hint="'ARGS'"
        )
    if gpu_memory is not None and not run:
        raise typer.BadParameter(
            "the memory of a step is only known with --run", param_hint="'--gpu-memory'"
        )
    if write and not fix:
        raise typer.BadParameter("it writes fixes: give --fix too", param_hint="'--write'")
    if fix and (run or as_json):
        other = "--run" if run else "--json"
        raise typer.BadParameter(f"--fix and {other} exclude each other", param_hint="'--fix'")
    # Syntax trees leave no garbage, and collecting it would take a tenth of the time.
    gc.disable()
    codes = None if select is None else select.split(",")
    ignored = None if ignore is None else ignore.split(",")
    if fix:
        _fix(script, as_module=as_module, gpus=gpus, codes=(codes, ignored), write=write)
        return
    from evener.doctor import diagnose

    found = diagnose(
        script,
        as_module=as_module,
        run=run,
        args=args,
        devices=devices,
        num_steps=steps,
        time_limit_seconds=time_limit,
        gpu_names=not no_gpu_names,
        num_gpus=gpus,
        gpu_memory_bytes=None if gpu_memory is None else _size(gpu_memory),
        select=codes,
        ignore=ignored,
    )
    if found.not_estimated:
        print(f"The memory of a step is not known: {found.not_estimated}", file=sys.stderr)
    for note in found.observation.notes if found.observation is not None else ():
        print(note, file=sys.stderr)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        from evener.report.findings import print_diagnosis

        print_diagnosis(found)
        if found.fixes:
            count = len(found.fixes)
            are = "fixes are certain" if count > 1 else "fix is certain"
            print(f"{count} {are}: evener doctor --fix prints the diff, --fix --write applies it.")
    if not found.is_fine:
        raise typer.Exit(1)


def _fix(
    script: str,
    *,
    as_module: bool,
    gpus: int | None,
    codes: tuple[list[str] | None, list[str] | None],
    write: bool,
) -> None:
    """Print or write the fixes. The exit code is that of the files as they are then."""
    from evener.base.terminal import standard_error
    from evener.base.text import printable
    from evener.doctor.fix import fix_program
    from evener.report.findings import print_diagnosis, print_fixes
    from evener.run.script import read_module

    path = Path(read_module(script).path if as_module else script)
    fixed = fix_program(path, num_gpus=gpus, select=codes[0], ignore=codes[1])
    if write:
        fixed.write()
    diff = fixed.diff()
    if sys.stdout.isatty():
        diff = printable(diff.decode(errors="replace")).encode()
    sys.stdout.buffer.write(diff)
    sys.stdout.buffer.flush()
    sys.stdout.flush()
    told = fixed.after if write else fixed.before
    console = standard_error(highlight=False)
    print_diagnosis(told, console)
    print_fixes(fixed, console, is_written=write and bool(fixed.contents))
    if not told.is_fine:
        raise typer.Exit(1)


def _size(text: str) -> int:
    from evener.base.text import parse_bytes

    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--gpu-memory'") from error
    if size <= 0:
        raise typer.BadParameter("give a size above 0", param_hint="'--gpu-memory'")
    return size


def _args_of(
    context: typer.Context, args: list[str] | None, script: str, *, as_module: bool
) -> list[str]:
    """Return the arguments of the program. A file that cannot be read is a finding."""
    from evener.errors import RunError
    from evener.run.script import read

    try:
        found = read(script, as_module=as_module)
    except RunError:
        if as_module:
            raise
        return args or []
    return args_of_script(context, args, found)


def _explain(code: str) -> None:
    from evener.doctor.explain import explain, known_codes
    from evener.errors import did_you_mean

    text = explain(code)
    if text is None:
        close = did_you_mean(code.upper(), known_codes())
        raise typer.BadParameter(f"there is no code {code!r}.{close}", param_hint="'--explain'")
    print(text)


def _list_rules(*, as_json: bool) -> None:
    from evener.doctor import all_rules

    if as_json:
        print(
            json.dumps(
                [
                    {
                        "code": rule.code,
                        "family": rule.family.value,
                        "severity": rule.severity.value,
                        "title": rule.title,
                    }
                    for rule in all_rules()
                ],
                indent=2,
            )
        )
        return
    from evener.report.findings import print_rules

    print_rules(all_rules())
