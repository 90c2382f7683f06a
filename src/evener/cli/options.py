"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
