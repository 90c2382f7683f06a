"""The command line: one file per command, each of which parses, calls and prints.

Exit codes: 0 success, 1 findings or failure, 2 wrong usage. Results go to standard output; warnings
and errors go to standard error.

``evener --help`` must be fast, so nothing heavy is imported here: a command imports its
dependencies when it runs, and help is printed without rich.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer
from typer.completion import (
    Shells,  # pyright: ignore[reportPrivateImportUsage]
    completion_init,  # pyright: ignore[reportPrivateImportUsage]
    install_callback,
    show_callback,
)

from evener import __version__
from evener.cli.conventions import SCRIPT_SETTINGS, WrongUsage
from evener.cli.doctor import doctor
from evener.cli.inspection import audit, devices, estimate, report
from evener.cli.launch import LaunchCommand, launch
from evener.cli.plan import plan
from evener.cli.run import Handover, bench, run
from evener.errors import EvenerError, EvenerWarning, RunError

# Registers the classes that answer the shell's requests, which come by an environment variable.
completion_init()

app = typer.Typer(
    name="evener",
    # typer's own options guess the shell from the parent process, which fails in scripts and
    # containers; in `_root` the shell is named.
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    # The commands inherit it.
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(devices)
# Everything after the script is an argument of the script.
app.command(context_settings=SCRIPT_SETTINGS)(audit)
app.command(context_settings=SCRIPT_SETTINGS)(bench)
app.command(context_settings=SCRIPT_SETTINGS)(doctor)
app.command(context_settings=SCRIPT_SETTINGS)(estimate)
app.command(cls=LaunchCommand, context_settings=SCRIPT_SETTINGS)(launch)
app.command(context_settings=SCRIPT_SETTINGS)(plan)
app.command()(report)
app.command(context_settings=SCRIPT_SETTINGS)(run)


def main() -> None:
    """Run the command line of this process, and end the process with its exit code."""
    warnings.showwarning = _show_warning
    handed_over: Handover | None = None
    try:
        app(prog_name="evener")
    except WrongUsage as usage:
        _print_error(usage.error)
        sys.exit(2)
    except EvenerError as error:
        _print_error(error)
        sys.exit(_exit_code(error))
    except Handover as handover:
        handed_over = handover
    if handed_over is not None:
        # Outside of the handlers, so that exceptions of the script have no context.
        handed_over.run()


def _print_version(asked: bool) -> None:
    if asked:
        print(f"evener {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # pyright: ignore[reportUnusedParameter]
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
    install_completion: Annotated[  # pyright: ignore[reportUnusedParameter]
        Shells | None,
        typer.Option(
            "--install-completion",
            metavar="SHELL",
            help="Install completion for bash, zsh, fish, powershell or pwsh, and exit.",
            callback=install_callback,
            is_eager=True,
            expose_value=False,
        ),
    ] = None,
    show_completion: Annotated[  # pyright: ignore[reportUnusedParameter]
        Shells | None,
        typer.Option(
            "--show-completion",
            metavar="SHELL",
            help="Print the completion script for a shell and exit.",
            callback=show_callback,
            is_eager=True,
            expose_value=False,
        ),
    ] = None,
) -> None:
    """Train TensorFlow and Keras models on every device you have, exactly."""


def _print_error(error: EvenerError) -> None:
    # Imported here: only an error needs it.
    from evener.doctor.rules import has_page

    print(error, file=sys.stderr)
    if has_page(error.code):
        print(f"More: evener doctor --explain {error.code}", file=sys.stderr)


# The command line is right, and something else failed.
_FAILURES = ("RUN-030", "RUN-040", "RUN-043", "RUN-105", "RUN-106", "RUN-107", "RUN-109", "RUN-113")


def _exit_code(error: EvenerError) -> int:
    # Imported here: only an error needs it.
    from evener.devices.spec import SpecError
    from evener.run.first_step import TargetError
    from evener.workers.faults import EXIT_CODE_OF_LOST, is_lost

    if is_lost(error):
        return EXIT_CODE_OF_LOST
    is_usage = isinstance(error, SpecError | RunError | TargetError)
    return 2 if is_usage and error.code not in _FAILURES else 1


_show_any_warning = warnings.showwarning


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    """Print a warning of evener in one line; Python's format would quote evener's source.

    A function of Keras that evener replaces is called by evener's replacement, which another
    warning about the caller would name; it gets the line that it has without evener.
    """
    if issubclass(category, EvenerWarning):
        print("Warning:", " ".join(str(message).split()), file=sys.stderr)
        return
    from evener.base.user_code import is_evener

    frame = sys._getframe() if is_evener(filename) else None
    while frame is not None and frame.f_code.co_filename != filename:
        frame = frame.f_back
    while frame is not None and is_evener(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        filename, lineno = frame.f_code.co_filename, frame.f_lineno
    _show_any_warning(message, category, filename, lineno)
