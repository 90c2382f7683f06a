"""The script on the command line, and what stands after it: alike in all commands.

docs/commands/conventions.md is the table of what the commands share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from evener.run.script import Script

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
    """Return the arguments of a script: everything after it, without a separator in front.

    Args:
        context: The command, whose options are looked for among the arguments.
        args: Words after the script.
        script: The script.

    Raises:
        RunError: RUN-022 if an option of the command is among them that the script does not
            mention. Behind a separator nothing is looked for.
    """
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
