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
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.completion import (
    Shells,  # pyright: ignore[reportPrivateImportUsage]
    completion_init,  # pyright: ignore[reportPrivateImportUsage]
    install_callback,
    show_callback,
)

from evener.errors import EvenerError, EvenerWarning, RunError

if TYPE_CHECKING:
    from evener.run.script import Script


# Shell completion: ``--install-completion SHELL`` and ``--show-completion SHELL``.
#
# typer's own options of these names guess the shell from the parent process, which fails in scripts
# and containers; here the shell is named.

# Registers the classes that answer the shell's requests, which come by an environment variable.
completion_init()

InstallCompletionOption = Annotated[
    Shells | None,
    typer.Option(
        "--install-completion",
        metavar="SHELL",
        help="Install completion for bash, zsh, fish, powershell or pwsh, and exit.",
        callback=install_callback,
        is_eager=True,
        expose_value=False,
    ),
]

ShowCompletionOption = Annotated[
    Shells | None,
    typer.Option(
        "--show-completion",
        metavar="SHELL",
        help="Print the completion script for a shell and exit.",
        callback=show_callback,
        is_eager=True,
        expose_value=False,
    ),
]


# Options that several commands share.

NoGpuNamesOption = Annotated[
    bool,
    typer.Option(
        "--no-gpu-names",
        help="On a machine without GPUs, do not present CPU devices to the program as GPUs.",
    ),
]

TimeLimitOption = Annotated[
    float,
    typer.Option(
        "--time-limit",
        metavar="SECONDS",
        min=1,
        help="Time limit for reaching the first training step and analyzing it.",
    ),
]

DEFAULT_LIMIT_SECONDS = 600.0
"""Time limit for a script up to the end of the measurement of its first training step."""

DevicesOption = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="SPEC",
        help="Devices to use: all; gpu:0,gpu:1; gpu:0@10GiB with a memory cap; or cpu:2 for "
        "two devices on the CPU. Default: the environment variable EVENER_DEVICES, else all.",
    ),
]

RecordOption = Annotated[
    Path | None,
    typer.Option(
        "--record",
        metavar="FOLDER",
        help="Record the run in a new folder, for evener report.",
    ),
]

LiveOption = Annotated[
    bool | None,
    typer.Option(
        "--live/--no-live",
        help="Show a live view of the training: step, time left, loss, and what each device does; "
        "plain lines where it cannot be drawn. Default: on a terminal.",
    ),
]


# Wrong usage of the command line: exit code 2.


class WrongUsage(Exception):
    """An error in the command line arguments."""

    def __init__(self, error: EvenerError) -> None:
        super().__init__(error)
        self.error = error


@contextlib.contextmanager
def wrong_usage(source: str) -> Iterator[None]:
    """Report an error of evener raised inside as wrong usage."""
    try:
        yield
    except EvenerError as error:
        what = f"{source}: {error.what}"
        raise WrongUsage(type(error)(error.code, what, why=error.why, fix=error.fix)) from error


def write_result(file: Path, text: str, *, is_printed: bool = False) -> None:
    """Write a result to a file; where that fails, print it instead."""
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


def check_writable(file: Path | None) -> None:
    """Refuse a file for results that cannot be written."""
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
        raise typer.BadParameter(f"{file} cannot be written")


# The script on the command line, and what stands after it: alike in all commands.
#
# docs/commands/conventions.md is the table of what the commands share.

AsModuleOption = Annotated[
    bool, typer.Option("-m", help="SCRIPT is the name of a module, run as python -m runs it.")
]

ArgsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ARGS]...", help="Arguments of the script: everything after it."),
]

SCRIPT_SETTINGS = {"allow_interspersed_args": False}
"""Settings of a command that takes a script: its own options go before the script."""

_SEPARATOR = "--"


def args_of_script(context: typer.Context, args: Sequence[str] | None, script: Script) -> list[str]:
    """Return the arguments of a script: everything after it, without a separator in front."""
    given = list(args or ())
    if given[:1] == [_SEPARATOR]:
        return given[1:]
    names = [word.partition("=")[0] for word in given]
    options = set(_long_options(context))
    late = next((name for name in names if name in options and name not in script.source), None)
    if late is not None:
        raise _late_option(late, context.info_name or "", script)
    return given


def _long_options(context: typer.Context) -> Iterator[str]:
    for parameter in context.command.params:
        for name in (*parameter.opts, *parameter.secondary_opts):
            if name.startswith("--"):
                yield name


def _late_option(name: str, command: str, script: Script) -> Exception:
    from evener.errors import RunError

    return RunError(
        "RUN-022",
        f"{name} stands after {script.given}, where it is an argument of the script.",
        why="Options of evener go before the script, and the script does not mention this one.",
        fix=f"evener {command} {name} ... {script.words}; if it is an argument of the script: "
        f"evener {command} {script.words} -- {name} ...",
    )


# A spinner on standard error while a command waits for more than a second, on a terminal only.

_DELAY_SECONDS = 1.0


@contextlib.contextmanager
def status(text: str, *, delay_seconds: float = _DELAY_SECONDS) -> Iterator[None]:
    """Show a spinner with a text on standard error while the code inside runs.

    Nothing is shown if standard error is not a terminal, or if the code ends before the delay.
    """
    if not sys.stderr.isatty():
        yield
        return
    # A copy of the terminal: `quiet_tensorflow` redirects the descriptor of standard error.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as terminal:
        shown = _Delayed(text, terminal)
        timer = threading.Timer(delay_seconds, shown.start)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            shown.stop()


class _Delayed:
    """A spinner that is started by another thread than the one that stops it."""

    def __init__(self, text: str, terminal: Any) -> None:
        self._text = text
        self._terminal = terminal
        self._lock = threading.Lock()
        self._is_over = False
        self._spinner: Any = None

    def start(self) -> None:
        """Show the spinner, unless it was stopped before."""
        # Only now: a command that is quick does not need it.
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        with self._lock:
            if not self._is_over:
                # `rich.status.Status` would redirect standard output to the terminal too.
                self._spinner = Live(
                    Spinner("dots", self._text),
                    console=Console(file=self._terminal),
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._spinner.start(refresh=True)

    def stop(self) -> None:
        """Remove the spinner from the terminal."""
        with self._lock:
            self._is_over = True
            if self._spinner is not None:
                self._spinner.stop()


# Hides the log that TensorFlow writes while it is imported.

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@contextlib.contextmanager
def quiet_tensorflow(environ: MutableMapping[str, str]) -> Iterator[None]:
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
    terminal = os.dup(2)
    with _evener_warnings_at_the_end(), tempfile.TemporaryFile() as held:
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


@contextlib.contextmanager
def _evener_warnings_at_the_end() -> Iterator[None]:
    show = warnings.showwarning
    held: list[tuple[Any, ...]] = []

    def hold(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if issubclass(category, EvenerWarning):
            held.append((message, category, *args))
        else:
            show(message, category, *args, **kwargs)

    warnings.showwarning = hold
    try:
        yield
    finally:
        warnings.showwarning = show
        for given in held:
            show(*given)
