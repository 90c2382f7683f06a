"""Several independent models at once, one on each device.

    python examples/independent_models.py
    python examples/independent_models.py --devices gpu:0,gpu:1

Every device trains with another learning rate. Each model has its own strategy, its own optimizer
and its own thread, so all devices are busy at the same time, and each model is trained
as if it were alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer
from custom_loop import make_model
from digits import choose_devices, import_tensorflow, load_digits
from rich.console import Console

import evener

RATES = (3e-3, 1e-3, 3e-4, 1e-4)


def main(
    devices: Annotated[str | None, typer.Option(help="such as gpu:0,gpu:1 or cpu:2")] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Train one model per device on handwritten digits, each with its own learning rate."""
    console = Console()
    import_tensorflow()
    import keras

    digits = load_digits()
    strategies = evener.Strategy.one_per_device(choose_devices(devices, console))
    trials = []
    for strategy, rate in zip(strategies, RATES, strict=False):
        with strategy.scope():
            model = make_model()
            model.compile(
                keras.optimizers.Adam(rate),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )
        trials.append((strategy.replica_devices[0], rate, model))

    def fit(model: keras.Model) -> float:
        model.fit(
            digits.train_x, digits.train_y, batch_size=128, epochs=epochs, shuffle=False, verbose=0
        )
        tested = model.evaluate(digits.test_x, digits.test_y, return_dict=True, verbose=0)
        return tested["accuracy"]

    with ThreadPoolExecutor(len(trials)) as threads:
        accuracies = list(threads.map(fit, [model for _, _, model in trials]))
    for (device, rate, _), accuracy in zip(trials, accuracies, strict=True):
        console.print(f"{device}  learning rate {rate:g}  test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    typer.run(main)
