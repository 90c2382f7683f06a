"""Two devices that do not match: each computes what it can, and holds what it can.

    python examples/two_gpus_unlike.py
    python examples/two_gpus_unlike.py --devices gpu:0,gpu:1@10GiB

evener measures how long each device takes for its share of a batch, and evens the shares
while training; variables go where there is room. Without GPUs two stand-ins take their
place. They are alike, so the second one is made to do everything twice: watch its share
fall. What is trained is what one device would have trained.
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


def make_model(slow_replica: int | None) -> Any:
    """Return the network, compiled.

    Args:
        slow_replica: A replica that computes everything a second time, or None.
    """
    import keras
    import tensorflow as tf
    from keras import layers

    class Network(keras.Model):
        """Three wide layers, in a training step of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.body = keras.Sequential(
                [layers.Flatten(), *(layers.Dense(512, activation="gelu") for _ in range(3))]
            )
            self.head = layers.Dense(10)

        def call(self, x: tf.Tensor) -> tf.Tensor:
            return self.head(self.body(x))

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            for _ in range(3 if self.is_slow() else 0):
                # Nothing but work: it is multiplied by 0, and no gradient passes.
                x = x + 0.0 * tf.stop_gradient(tf.reduce_mean(self(x, training=True)))
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {metric.name: metric.result() for metric in self.metrics}

        def is_slow(self) -> bool:
            context = tf.distribute.get_replica_context()
            number = tf.get_static_value(context.replica_id_in_sync_group)
            return slow_replica is not None and number == slow_replica

    keras.utils.set_random_seed(1)
    model = Network()
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
    are_stand_ins = all(name.startswith("cpu") for name in strategy.replica_devices)
    with strategy.scope():
        model = make_model(slow_replica=1 if are_stand_ins else None)
    weights = fit(model, digits, epochs)

    for event in strategy.sharing.events:
        console.print(Text(str(event)), soft_wrap=True)
    owned = strategy.owner_registry.owned_bytes()
    for device, share in zip(strategy.replica_devices, strategy.shares, strict=True):
        console.print(f"{device}  share {share:.1%}  holds {owned[device] / 2**20:.1f} MiB")
    lone = fit(make_model(slow_replica=None), digits, epochs)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(lone, weights, strict=True))
    console.print(f"Largest difference to one device {apart:.1e}, wanted {TOLERANCE:.0e}.")
    raise typer.Exit(0 if apart <= TOLERANCE else 1)


if __name__ == "__main__":
    typer.run(main)
