"""Two devices of different speed and memory: shares and variables are chosen to fit each.

    python examples/two_gpus_unlike.py
    python examples/two_gpus_unlike.py --devices gpu:0,gpu:1@10GiB

evener measures how long each device takes for its share of a batch, and rebalances the shares
while training; variables are placed where memory is free. Without GPUs it uses two stand-ins,
which are equally fast, so their shares stay about even. The trained weights are those of one
device.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from digits import Digits, choose_devices, import_tensorflow, load_digits
from rich.console import Console
from rich.text import Text

import evener

BATCH_SIZE = 512
TOLERANCE = 1e-4


def make_model() -> Any:
    """Return the network, compiled."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    hidden = [layers.Dense(512, activation="gelu") for _ in range(3)]
    model = keras.Sequential([layers.Flatten(), *hidden, layers.Dense(10)])
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def fit(model: Any, digits: Digits, epochs: int) -> list[Any]:
    """Train a model; return its weights."""
    model.fit(
        digits.train_x,
        digits.train_y,
        batch_size=BATCH_SIZE,
        epochs=epochs,
        shuffle=False,
        verbose=0,
    )
    return model.get_weights()


def main(
    devices: Annotated[str | None, typer.Option(help="such as gpu:0,gpu:1 or cpu:2")] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 4,
) -> None:
    """Train on handwritten digits on two devices that do not match."""
    console = Console()
    import_tensorflow()
    import numpy as np

    digits = load_digits()
    strategy = evener.Strategy(devices=choose_devices(devices, console))
    with strategy.scope():
        model = make_model()
    weights = fit(model, digits, epochs)

    for event in strategy.share_controller.events:
        console.print(Text(str(event)), soft_wrap=True)
    owned = strategy.owner_registry.owned_bytes()
    for device, share in zip(strategy.replica_devices, strategy.shares, strict=True):
        console.print(f"{device}  share {share:.1%}  holds {owned[device] / 2**20:.1f} MiB")
    lone = fit(make_model(), digits, epochs)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(lone, weights, strict=True))
    console.print(f"Largest difference to one device {apart:.1e}, wanted {TOLERANCE:.0e}.")
    raise typer.Exit(0 if apart <= TOLERANCE else 1)


if __name__ == "__main__":
    typer.run(main)
