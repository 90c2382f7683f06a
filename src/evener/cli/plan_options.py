"""Options of ``evener plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BatchSizeOption = Annotated[
    str | None,
    typer.Option(
        "--batch-size",
        metavar="N|max|auto",
        help="Samples of the global batch. max: the largest batch that fits into memory. auto: "
        "the smallest batch with nearly the highest throughput. Default: the batch of the "
        "script.",
    ),
]

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Plan for a published model, such as bert-large, instead of a script. Needs "
        "--cluster.",
    ),
]

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="FILE|NAME",
        help="Plan for the devices of a cluster: a YAML file that describes it, or a cluster "
        "that evener knows, such as a100-8. The times of a script follow from its operations and "
        "bytes, and the datasheets of the devices.",
    ),
]

ProfileOption = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Use the measurements in this file instead of measuring a script.",
    ),
]

FromRunOption = Annotated[
    Path | None,
    typer.Option(
        "--from-run",
        metavar="FILE",
        help="Scale the predicted times to a measured run: a file written by evener run "
        "--report-file.",
    ),
]

SaveProfileOption = Annotated[
    Path | None,
    typer.Option("--save-profile", metavar="FILE", help="Write the measurements to a file."),
]

CheckOption = Annotated[
    Path | None,
    typer.Option(
        "--check",
        metavar="PLAN",
        exists=True,
        dir_okay=False,
        help="Predict the cost of the plan in this JSON file, instead of searching for a plan.",
    ),
]

OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write the plan as JSON, for evener run."),
]

RemeasureOption = Annotated[
    bool,
    typer.Option(
        "--remeasure",
        help="Measure all layers again, even if measurements for these devices are stored.",
    ),
]
