"""``evener report``: the record of a run as a page, as figures, or as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", show_default=False, help="The folder of a recorded run."),
    ],
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN2]", show_default=False, help="Another run, to be shown beside it."
        ),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="File for the page. Default: report.html in RUN."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write the recorded steps as a trace for Perfetto instead of a page.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the figures of each run, one JSON object a line."),
    ] = False,
) -> None:
    """Show a recorded run, or two side by side, as one HTML page that needs no network.

    Record a run with evener run --record, evener launch --record or evener.record.
    """
    from evener.cli.usage import check_writable
    from evener.recording.reading import read_records

    folders = [run, *([other] if other is not None else [])]
    if trace is not None and other is not None:
        raise typer.BadParameter("a trace has one run", param_hint="'--trace'")
    if trace is not None and (as_json or out is not None):
        raise typer.BadParameter("excludes --out and --json", param_hint="'--trace'")
    check_writable(trace)
    check_writable(out)
    runs = [read_records(folder) for folder in folders]
    if trace is not None:
        from evener.report.trace import trace_of

        _write(trace, trace_of(runs[0]))
        typer.echo(f"{trace}: open it in Perfetto")
        return
    if as_json:
        from evener.recording.summary import summarise

        for records in runs:
            for record in records:
                typer.echo(summarise(record).to_json())
        return
    from evener.report.page import render_page

    file = run / "report.html" if out is None else out
    check_writable(file)
    _write(file, render_page(runs).encode())
    typer.echo(str(file))


def _write(file: Path, data: bytes) -> None:
    from evener.errors import RunError

    try:
        file.write_bytes(data)
    except OSError as error:
        raise RunError(
            "RUN-106",
            f"The report cannot be written to {file}.",
            why=f"{error.strerror or error}.",
            fix="Give another file, with --out or --trace.",
        ) from error
