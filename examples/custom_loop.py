"""A custom training loop on all devices: a loop for one device, and three more lines.

    python examples/custom_loop.py
    python examples/custom_loop.py --devices gpu:0,gpu:1 --epochs 10

The three lines are marked. The optimizer clips by the norm of the whole batch's gradient and
its last batch is smaller than the others; weights, loss and accuracy still equal those of one
device.

Exit codes: 0 fine, 1 if the accuracy is not reached.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from digits import Digits, choose_devices, import_tensorflow, load_digits
from rich.console import Console

import evener

BATCH_SIZE = 128
LEAST_ACCURACY = 0.95


def make_model() -> Any:
    """Return the network."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    return keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Flatten(),
        layers.Dense(256, activation="gelu"),
        layers.Dense(128, activation="gelu"),
        layers.Dense(10),
    ])  # fmt: skip


def train(strategy: evener.Strategy, digits: Digits, epochs: int, console: Console) -> float:
    """Train, save and test a model; return its accuracy on digits not trained on."""
    import keras
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((digits.train_x, digits.train_y))
    dataset = dataset.shuffle(10_000, seed=1).batch(BATCH_SIZE)
    dataset = strategy.experimental_distribute_dataset(dataset)  # 1: split every batch

    with strategy.scope():  # 2: give every variable its owner
        model = make_model()
        optimizer = keras.optimizers.Adam(3e-3, global_clipnorm=1.0)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        mean_loss = keras.metrics.Mean()

    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_of(y, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, logits)
        mean_loss.update_state(loss)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        strategy.run(train_step, args=(x, y))  # 3: on all devices

    for epoch in range(epochs):
        for x, y in dataset:
            step(x, y)
        console.print(
            f"epoch {epoch + 1}/{epochs}  loss {float(mean_loss.result()):.4f}  "
            f"accuracy {float(accuracy.result()):.4f}"
        )
        mean_loss.reset_state()
        accuracy.reset_state()

    with tempfile.TemporaryDirectory() as folder:
        saved = tf.train.Checkpoint(model=model, optimizer=optimizer).save(f"{folder}/digits")
        console.print(f"Saved as {Path(saved).name}, for any number of devices.")
    return test(strategy, model, digits)


def test(strategy: evener.Strategy, model: Any, digits: Digits) -> float:
    """Return the accuracy on the digits that were not trained on."""
    import tensorflow as tf

    pictures = tf.data.Dataset.from_tensor_slices(digits.test_x).batch(BATCH_SIZE)

    @tf.function
    def predict(x: tf.Tensor) -> tf.Tensor:
        logits = strategy.run(lambda part: model(part, training=False), args=(x,))
        return strategy.gather(logits, axis=0)

    found = [predict(x) for x in strategy.experimental_distribute_dataset(pictures)]
    return float((tf.argmax(tf.concat(found, 0), 1).numpy() == digits.test_y).mean())


def main(
    devices: Annotated[str | None, typer.Option(help="such as gpu:0,gpu:1 or cpu:2")] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 6,
) -> None:
    """Train on handwritten digits in a custom loop, on all devices."""
    console = Console()
    import_tensorflow()
    strategy = evener.Strategy(devices=choose_devices(devices, console))
    accuracy = train(strategy, load_digits(), epochs, console)
    shares = ", ".join(f"{share:.0%}" for share in strategy.shares)
    console.print(f"{', '.join(strategy.replica_devices)} computed {shares} of the last batch.")
    console.print(f"Test accuracy {accuracy:.4f}, wanted {LEAST_ACCURACY}.")
    raise typer.Exit(0 if accuracy >= LEAST_ACCURACY else 1)


if __name__ == "__main__":
    typer.run(main)
