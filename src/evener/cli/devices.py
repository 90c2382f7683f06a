"""``evener devices``: what is here, what is used, and why the rest is not."""

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
    """List all devices, and for each one that is not used the reason."""
    from evener.cli.quiet import quiet_tensorflow
    from evener.devices import inventory
    from evener.devices.spec import spec_from
    from evener.devices.tensorflow_view import import_tensorflow

    # First what costs nothing: a wrong spec need not wait for TensorFlow.
    spec_from(spec, os.environ)
    with quiet_tensorflow(os.environ):
        import_tensorflow()
    found = inventory(spec)
    if as_json:
        print(found.to_json())
        return
    from evener.report.tables import print_inventory

    print_inventory(found)
