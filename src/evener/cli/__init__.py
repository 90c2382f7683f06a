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

from evener import __version__
from evener.cli.conventions import (
    SCRIPT_SETTINGS,
    InstallCompletionOption,
    ShowCompletionOption,
    WrongUsage,
)
from evener.cli.doctor import doctor
from evener.cli.inspection import audit, devices, estimate, report
from evener.cli.launch import LaunchCommand, launch
from evener.cli.plan import plan
from evener.cli.run import Handover, bench, run
from evener.errors import EvenerError, EvenerWarning, RunError

app = typer.Typer(
    name="evener",
    # `completion` defines options of the same names.
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


@app.callback()
def _root(
    version: Annotated[  # pyright: ignore[reportUnusedParameter]
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=lambda asked: _print_version(asked=asked),
            is_eager=True,
        ),
    ] = False,
    install_completion: InstallCompletionOption = None,  # pyright: ignore[reportUnusedParameter]
    show_completion: ShowCompletionOption = None,  # pyright: ignore[reportUnusedParameter]
) -> None:
    """Train TensorFlow and Keras models on every device you have, exactly."""


def _print_version(*, asked: bool) -> None:
    if asked:
        print(f"evener {__version__}")
        raise typer.Exit


def _print_error(error: EvenerError) -> None:
    # Imported here: only an error needs it.
    from evener.doctor.explain import has_page

    print(error, file=sys.stderr)
    if has_page(error.code):
        print(f"More: evener doctor --explain {error.code}", file=sys.stderr)


# The command line is right, and something else failed.
_FAILURES = ("RUN-030", "RUN-040", "RUN-043", "RUN-105", "RUN-106", "RUN-107", "RUN-109")


def _exit_code(error: EvenerError) -> int:
    # Imported here: only an error needs it.
    from evener.devices.spec import SpecError
    from evener.run.questions import TargetError
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
    """Print a warning of evener in one line; Python's format would quote evener's source."""
    if issubclass(category, EvenerWarning):
        print("Warning:", " ".join(str(message).split()), file=sys.stderr)
    else:
        _show_any_warning(message, category, *_without_replacement(filename, lineno))


def _without_replacement(filename: str, lineno: int) -> tuple[str, int]:
    """Return the line of a warning as it is without evener.

    A function of Keras that evener replaces is called by evener's replacement, which a warning
    about the caller would name.
    """
    from evener.base.user_code import is_evener

    frame = sys._getframe(1) if is_evener(filename) else None
    while frame is not None and frame.f_code.co_filename != filename:
        frame = frame.f_back
    while frame is not None and is_evener(frame.f_code.co_filename):
        frame = frame.f_back
    return (filename, lineno) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
