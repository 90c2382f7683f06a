"""All variables on the host, or on one of the devices.

    python examples/central_storage.py
    python examples/central_storage.py --owner gpu:0
    python examples/central_storage.py --devices gpu:0,gpu:1 --owner host

If devices have little memory, the weights of a model and the state of its optimizer can stay
on the host: a device fetches a weight only while it computes with it, as with
`tf.distribute.experimental.CentralStorageStrategy`. The trained weights do not depend on the
owner.
"""

from __future__ import annotations

from typing import Annotated

import typer
from custom_loop import make_model
from digits import choose_devices, import_tensorflow, load_digits
from rich.console import Console

import evener
from evener.base.text import format_bytes


def main(
    devices: Annotated[str | None, typer.Option(help="such as gpu:0,gpu:1 or cpu:2")] = None,
    owner: Annotated[str, typer.Option(help="host, or one of the devices")] = "host",
    epochs: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Train on handwritten digits with all variables in one place."""
    console = Console()
    import_tensorflow()
    import keras

    digits = load_digits()
    strategy = evener.Strategy(
        devices=choose_devices(devices, console),
        owners="central" if owner == "host" else {"*": owner},
    )
    with strategy.scope():
        model = make_model()
        model.compile(
            keras.optimizers.Adam(1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(
        digits.train_x, digits.train_y, batch_size=128, epochs=epochs, shuffle=False, verbose=0
    )
    tested = model.evaluate(digits.test_x, digits.test_y, return_dict=True, verbose=0)
    console.print(f"Computed on {', '.join(strategy.replica_devices)}; variables are kept:")
    for device, num_bytes in strategy.owner_registry.owned_bytes().items():
        console.print(f"  {device}  {format_bytes(num_bytes)}")
    console.print(f"Test accuracy {tested['accuracy']:.4f}")


if __name__ == "__main__":
    typer.run(main)
