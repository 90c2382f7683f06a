"""``evener audit``: where the operations of one training step run, and what moves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from evener.cli.options import DevicesOption

_DEFAULT_LIMIT_SECONDS = 300.0


def audit(
    *,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION|SCRIPT",
            show_default=False,
            help="A function of a module, or a Python file that trains.",
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Everything after SCRIPT is the script's."),
    ] = None,
    devices: DevicesOption = None,
    meant_for: Annotated[
        str | None,
        typer.Option(
            "--meant-for",
            metavar="gpu",
            help="Say of all operations whether they could run on a GPU, here or not.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", min=1, metavar="N", help="What stands for None in an input_signature."
        ),
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(
            "--graph", metavar="FILE", help="Draw devices and traffic: a .svg or a .dot file."
        ),
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            min=1,
            help="How long the program may take to come to its first step.",
        ),
    ] = _DEFAULT_LIMIT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; sizes are bytes.")
    ] = False,
) -> None:
    """Show where the operations of one training step run, and why; the step is not taken."""
    from evener.devices.spec import spec_from
    from evener.launch.auditing import audit_apart, order_for

    if meant_for not in (None, "gpu"):
        raise typer.BadParameter(f"{meant_for!r} is not gpu", param_hint="'--meant-for'")
    if graph is not None and graph.suffix not in (".svg", ".dot"):
        raise typer.BadParameter(
            f"{graph} ends neither in .svg nor in .dot", param_hint="'--graph'"
        )
    if graph is not None and (graph.is_dir() or not os.access(graph.parent, os.W_OK)):
        raise typer.BadParameter(f"{graph} cannot be written", param_hint="'--graph'")
    # First what costs nothing: a mistake need not wait for TensorFlow.
    spec = spec_from(devices, os.environ)
    order = order_for(
        target,
        tuple(args or ()),
        devices=None if spec.source == "default" else str(spec),
        meant_for=meant_for,
        batch=batch,
    )
    found, _ = audit_apart(order, limit_seconds=time_limit)
    if graph is not None:
        from evener.report.traffic import draw

        graph.write_text(draw(found, graph.suffix), encoding="utf-8")
    if as_json:
        print(found.to_json())
    else:
        from evener.report.placement import print_audit

        print_audit(found)
    raise typer.Exit(1 if found.findings else 0)
