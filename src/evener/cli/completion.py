"""Shell completion: ``--install-completion SHELL`` and ``--show-completion SHELL``.

typer's own options of these names guess the shell from the parent process, which fails in scripts
and containers; here the shell is named.
"""

from __future__ import annotations

from typing import Annotated

import typer
from typer.completion import (
    Shells,  # pyright: ignore[reportPrivateImportUsage]
    completion_init,  # pyright: ignore[reportPrivateImportUsage]
    install_callback,
    show_callback,
)

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
