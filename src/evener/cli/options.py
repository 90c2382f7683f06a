"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

DevicesOption = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="SPEC",
        help="Which devices to use: all, gpu:0,gpu:1, gpu:0@10GiB, or cpu:2 for two "
        "stand-ins. Without it: the environment's EVENER_DEVICES, else all.",
    ),
]
