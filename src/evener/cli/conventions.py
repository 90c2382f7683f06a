"""Conventions of the commands: options, the script and its arguments, wrong usage, quiet waiting.

docs/commands/conventions.md is the table of it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Generator, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evener.errors import EvenerError, EvenerWarning, RunError

if TYPE_CHECKING:
    from evener.run.script import Script


def option(name: str, text: str, **settings: Any) -> Any:
    """Return an option of typer: its name, with what stands for its value, and its help."""
    name, _, metavar = name.partition(" ")
    return typer.Option(name, metavar=metavar or None, help=text, **settings)


def argument(metavar: str, text: str, **settings: Any) -> Any:
    return typer.Argument(metavar=metavar, help=text, **settings)


NoGpuNamesOption = Annotated[
    bool,
    option(
        "--no-gpu-names",
        "On a machine without GPUs, do not present CPU devices to the program as GPUs.",
    ),
]

TimeLimitOption = Annotated[
    float,
    option(
        "--time-limit SECONDS",
        "Time limit for reaching the first training step and analyzing it.",
        min=1,
    ),
]

DEFAULT_LIMIT_SECONDS = 600.0
"""Time limit for a script up to the end of the measurement of its first training step."""

DevicesOption = Annotated[
    str | None,
    option(
        "--devices SPEC",
        "Devices to use: all; gpu:0,gpu:1; gpu:0@10GiB with a memory cap; or cpu:2 for "
        "two devices on the CPU. Default: the environment variable EVENER_DEVICES, else all.",
    ),
]

RecordOption = Annotated[
    Path | None, option("--record FOLDER", "Record the run in a new folder, for evener report.")
]

LogDirOption = Annotated[
    Path | None,
    option(
        "--log-dir FOLDER",
        "Write losses and the work of each device at the end of every epoch of fit, for "
        "TensorBoard and as CSV.",
    ),
]

CheckpointOption = Annotated[
    str | None,
    option(
        "--checkpoint FOLDER",
        "Write checkpoints of every fit and of loops, and go on from the newest ones when the same "
        "command is run again.",
    ),
]

EveryStepsOption = Annotated[
    int | None,
    option(
        "--every-steps N",
        "With --checkpoint: number of steps between checkpoints. Default: 60 seconds.",
        min=1,
    ),
]


def checkpoint_folder(folder: str | None, every_steps: int | None) -> str | None:
    """Return the folder of --checkpoint from the root: a script may change its own folder."""
    if folder is None:
        if every_steps is not None:
            raise typer.BadParameter("it is for --checkpoint", param_hint="'--every-steps'")
        return None
    return folder if "://" in folder else str(Path(folder).expanduser().absolute())


JsonOption = Annotated[bool, option("--json", "Print one JSON object; sizes are in bytes.")]

LiveOption = Annotated[
    bool | None,
    option(
        "--live/--no-live",
        "Show a live view of the training: step, time left, loss, and what each device does; "
        "plain lines where it cannot be drawn. Default: on a terminal.",
    ),
]


class WrongUsage(Exception):
    """An error in the command line arguments: exit code 2."""

    def __init__(self, error: EvenerError) -> None:
        super().__init__(error)
        self.error = error


@contextlib.contextmanager
def wrong_usage(source: str) -> Generator[None]:
    try:
        yield
    except EvenerError as error:
        what = f"{source}: {error.what}"
        raise WrongUsage(type(error)(error.code, what, why=error.why, fix=error.fix)) from error


def write_result(file: Path, text: str, *, is_printed: bool = False) -> None:
    was_there = file.exists()
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        if not was_there:
            # A part of a result is none.
            with contextlib.suppress(OSError):
                file.unlink()
        if not is_printed:
            print(text)
        raise RunError(
            "RUN-043",
            f"{file} cannot be written.",
            why=f"{error.strerror or error}.",
            fix="Take the result from standard output, where it is printed, or give a file on "
            "another disk.",
        ) from error


def check_writable(file: Path | None, hint: str | None = None) -> None:
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
        raise typer.BadParameter(f"{file} cannot be written", param_hint=hint)


AsModuleOption = Annotated[
    bool, option("-m", "SCRIPT is the name of a module, run as python -m runs it.")
]

ScriptArgument = Annotated[
    str, argument("SCRIPT", "The Python file to run, or with -m the module.", show_default=False)
]

ArgsArgument = Annotated[
    list[str] | None, argument("[ARGS]...", "Arguments of the script: everything after it.")
]

SCRIPT_SETTINGS = {"allow_interspersed_args": False}
"""Settings of a command that takes a script: its own options go before the script."""


def args_of_script(context: typer.Context, args: Sequence[str] | None, script: Script) -> list[str]:
    """Return the arguments of a script: everything after it, without a separator in front.

    RUN-022 if an option of the command is among them that the script does not mention. Behind a
    separator nothing is looked for.
    """
    given = list(args or ())
    if given[:1] == ["--"]:
        return given[1:]
    options = {
        name
        for parameter in context.command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--")
    }
    for word in given:
        name = word.partition("=")[0]
        if name in options and name not in script.source:
            command = context.info_name or ""
            raise RunError(
                "RUN-022",
                f"{name} stands after {script.given}, where it is an argument of the script.",
                why="Options of evener go before the script, and the script does not mention this "
                "one.",
                fix=f"evener {command} {name} ... {script.words}; if it is an argument of the "
                f"script: evener {command} {script.words} -- {name} ...",
            )
    return given


@contextlib.contextmanager
def status(text: str, *, delay_seconds: float = 1.0) -> Generator[None]:
    """Show a spinner with a text on standard error while the code inside runs.

    Nothing is shown if standard error is not a terminal, or if the code ends before the delay.
    """
    if not sys.stderr.isatty():
        yield
        return
    lock = threading.Lock()
    is_over, spinner = False, None

    def start() -> None:
        # Only now: a command that is quick does not need it.
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        nonlocal spinner
        with lock:
            if not is_over:
                # `rich.status.Status` would redirect standard output to the terminal too.
                spinner = Live(
                    Spinner("dots", text),
                    console=Console(file=terminal),
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                spinner.start(refresh=True)

    # A copy of the terminal: `quiet_tensorflow` redirects the descriptor of standard error.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as terminal:
        timer = threading.Timer(delay_seconds, start)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with lock:
                is_over = True
                if spinner is not None:
                    spinner.stop()


LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@contextlib.contextmanager
def quiet_tensorflow(environ: MutableMapping[str, str]) -> Generator[None]:
    """Hide TensorFlow's log while it is imported, unless the import fails.

    The log level is set for the whole process, but TensorFlow 2.21 writes some lines before it
    reads the level. These are held back, and printed if an exception is raised that is not an
    error of evener. Warnings of evener are printed at the end. If ``TF_CPP_MIN_LOG_LEVEL`` is
    ``"0"``, nothing is hidden; another level that is set stays.
    """
    if environ.setdefault(LOG_LEVEL, "3") == "0":
        yield
        return
    sys.stderr.flush()
    show, warned = warnings.showwarning, list[tuple[Any, ...]]()

    def hold(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if issubclass(category, EvenerWarning):
            warned.append((message, category, *args))
        else:
            show(message, category, *args, **kwargs)

    terminal, warnings.showwarning = os.dup(2), hold
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except EvenerError:
            raise
        except BaseException:
            held.seek(0)
            os.write(terminal, held.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            warnings.showwarning = show
            for warning in warned:
                show(*warning)
