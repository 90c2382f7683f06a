"""``evener doctor``: mistakes in a training program."""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from evener.cli import conventions
from evener.cli.conventions import args_of_script, argument, option


def doctor(
    context: typer.Context,
    *,
    script: Annotated[
        str | None, argument("SCRIPT", "The program to check.", show_default=False)
    ] = None,
    args: conventions.ArgsArgument = None,
    as_module: conventions.AsModuleOption = False,
    run: Annotated[
        bool,
        option(
            "--run/--no-run",
            "Run the first steps of the program, in a subprocess, or only read it.",
        ),
    ] = True,
    sandbox: Annotated[
        bool, option("--sandbox", "Run it where its writes do not reach the current folder.")
    ] = False,
    devices: conventions.DevicesOption = None,
    no_gpu_names: conventions.NoGpuNamesOption = False,
    steps: Annotated[int, option("--steps N", "Number of training steps to watch.", min=2)] = 20,
    time_limit: Annotated[
        float, option("--time-limit SECONDS", "Time limit of the run.", min=1)
    ] = 120,
    gpus: Annotated[
        int | None,
        option(
            "--gpus N",
            "Number of GPUs to assume. Default: those of this machine, or 2 if it has none.",
            min=0,
            show_default=False,
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        option(
            "--gpu-memory SIZE",
            "Memory of each GPU to assume, such as 12GiB; the memory of a step is compared "
            "with it. Default: that of this machine's GPUs.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        str | None,
        option(
            "--select CODES",
            "Report only these rules: codes or prefixes of codes, separated by commas, for "
            "example DOC-201,DOC-4.",
        ),
    ] = None,
    ignore: Annotated[str | None, option("--ignore CODES", "Do not report these rules.")] = None,
    explain: Annotated[
        str | None, option("--explain CODE", "Print the help page for a code and exit.")
    ] = None,
    rules: Annotated[bool, option("--rules", "List all rules and exit.")] = False,
    as_json: Annotated[bool, option("--json", "Print one JSON object.")] = False,
) -> None:
    """Find mistakes in a training program: run its first steps, and judge what they show."""
    if explain is not None:
        _explain(explain)
        return
    if rules:
        from evener.doctor import all_rules

        if as_json:
            listed = [
                {
                    "code": rule.code,
                    "family": rule.family.value,
                    "severity": rule.severity.value,
                    "title": rule.title,
                }
                for rule in all_rules()
            ]
            print(json.dumps(listed, indent=2))
        else:
            from evener.report.findings import print_rules

            print_rules(all_rules())
        return
    if script is None:
        raise typer.BadParameter("give the program to check", param_hint="'SCRIPT'")
    args = _args_of(context, args, script, as_module=as_module)
    if args and not run:
        raise typer.BadParameter(
            f"{args[0]!r} is for the program, which is not run with --no-run", param_hint="'ARGS'"
        )
    # Syntax trees leave no garbage, and collecting it would take a tenth of the time.
    gc.disable()
    from evener.base.libraries import check_backend
    from evener.doctor import Diagnosis, diagnose

    check_backend(os.environ.get("KERAS_BACKEND", ""))

    def tell_reading(read: Diagnosis) -> None:
        """Say what is run, and what reading is sure of already."""
        print(
            f"Running the first {steps} steps of {script}, {time_limit:g} s at most; "
            "--no-run only reads it.",
            file=sys.stderr,
        )
        for finding in read.findings:
            print(f"Read: {finding.location} [{finding.code}] {finding.what}", file=sys.stderr)

    with _progress() as show:
        diagnosis = diagnose(
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
            sandbox=sandbox,
            select=None if select is None else select.split(","),
            ignore=None if ignore is None else ignore.split(","),
            on_read=None if as_json else tell_reading,
            on_progress=show,
        )
    if diagnosis.not_estimated:
        print(f"The memory of a step is not known: {diagnosis.not_estimated}", file=sys.stderr)
    for note in diagnosis.facts.notes if diagnosis.facts is not None else ():
        print(note, file=sys.stderr)
    if as_json:
        print(json.dumps(diagnosis.to_dict(), indent=2))
    else:
        from evener.report.findings import print_diagnosis

        print_diagnosis(diagnosis)
    if any(finding.code == "DOC-002" for finding in diagnosis.findings):
        raise typer.Exit(2)
    if not diagnosis.is_fine:
        raise typer.Exit(1)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Give a function that shows one line of progress on standard error, if it is a terminal."""
    is_terminal = sys.stderr.isatty()

    def show(text: str) -> None:
        if is_terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        show("")


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
    from evener.errors import RunError
    from evener.run.script import read

    try:
        found = read(script, as_module=as_module)
    except RunError:
        if as_module or script.endswith(".ipynb"):
            raise
        return args or []
    _note_other_library(script, found.source)
    return args_of_script(context, args, found)


def _note_other_library(script: str, source: str) -> None:
    """Say of a program for another library that the doctor does not know it."""
    imported: set[str] = set()
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError):
        return  # A finding.
    for node in nodes:
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.add(node.module.partition(".")[0])
    others = [name for name in ("torch", "jax", "mxnet", "paddle") if name in imported]
    if others and not imported & {"tensorflow", "keras", "tf_keras", "evener"}:
        print(
            f"{script} imports {' and '.join(others)}, and neither TensorFlow nor Keras: the "
            "doctor's rules are for those.",
            file=sys.stderr,
        )


def _explain(code: str) -> None:
    from evener.doctor.rules import explain, known_codes
    from evener.errors import did_you_mean

    text = explain(code)
    if text is None:
        close = did_you_mean(code.upper(), known_codes())
        raise typer.BadParameter(f"there is no code {code!r}.{close}", param_hint="'--explain'")
    print(text)
