"""``evener devices``: all devices, and why some are not used."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from evener.cli.options import DevicesOption


def devices(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; sizes are in bytes.")
    ] = False,
    spec: DevicesOption = None,
) -> None:
    """List all devices, and the reason for each one that is not used."""
    from evener.cli.quiet import quiet_tensorflow
    from evener.cli.status import status
    from evener.collector import paused_collector
    from evener.devices import inventory
    from evener.devices.spec import spec_from
    from evener.devices.tensorflow_view import import_tensorflow

    # Before TensorFlow is imported, which takes seconds.
    spec_from(spec, os.environ)
    with status("Looking for devices"):
        with quiet_tensorflow(os.environ), paused_collector():
            import_tensorflow()
        found = inventory(spec)
    if as_json:
        print(found.to_json())
        return
    from evener.devices.table import print_inventory

    print_inventory(found)
