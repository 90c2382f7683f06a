"""``evener run``: an unchanged script on all devices."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evener.cli.options import DevicesOption

if TYPE_CHECKING:
    from evener.launch.session import Session


class Handover(BaseException):
    """Takes a script out of the command line, to where nothing comes between it and Python.

    typer ends the process in its own way on Ctrl-C, and on errors that scripts may raise too.

    Args:
        session: What to run.
        args: What the script finds on its command line.
    """

    def __init__(self, session: Session, args: list[str]) -> None:
        super().__init__()
        self._session = session
        self._script_args = args

    def run(self) -> None:
        """Run the script."""
        self._session.run(self._script_args)


def run(
    *,
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT", show_default=False, help="The Python file, as for python."
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Everything after SCRIPT is the script's."),
    ] = None,
    devices: DevicesOption = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            readable=True,
            help="What runs where: a plan in JSON, instead of --devices and --shares.",
        ),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            "--shares",
            metavar="NUMBERS",
            help="The part of each device, such as 3,1, or even. Without it: measured.",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Say at the end what was used, on standard error.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="The report as one JSON object, the last line of it all."),
    ] = False,
) -> None:
    """Run an unchanged script on all devices."""
    from evener.cli.quiet import quiet_tensorflow
    from evener.devices.spec import spec_from
    from evener.launch.script import read_script
    from evener.launch.session import Layout, prepare

    # First what costs nothing: a mistake need not wait for TensorFlow.
    read = read_script(script)
    spec_from(devices, os.environ)
    layout = Layout(devices=devices, plan=plan, shares=_parse_shares(shares))
    with quiet_tensorflow(os.environ):
        session = prepare(read, layout)
    if report or as_json:
        _report_at_the_end(session, as_json=as_json)
    raise Handover(session, args or [])


def _report_at_the_end(session: Session, *, as_json: bool) -> None:
    # Now, not at the end: modules of the script may have the names of those needed then, and
    # Python forgets that it ended by Ctrl-C when an import runs text as code.
    from evener.report.script_run import print_report, report_of

    process = os.getpid()

    def print_it() -> None:
        # A fork of the script's has an end too.
        if os.getpid() == process:
            said = [str(note) for note in session.notes.told]
            found = report_of(session.script.given, session.strategy, said)
            print_report(found, as_json=as_json)

    # The first to be registered is the last to run, after all that the script says.
    atexit.register(print_it)


def _parse_shares(text: str | None) -> str | list[float] | None:
    if text is None or text == "even":
        return text
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither 'even' nor a list of numbers such as 3,1",
            param_hint="'--shares'",
        ) from None
