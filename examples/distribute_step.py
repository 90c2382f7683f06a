"""A training step written for one device, run on all devices by adding one line.

    python examples/distribute_step.py
    python examples/distribute_step.py --devices gpu:0,gpu:1

The loss is contrastive: every sample is compared with all others of the batch, so no device can
compute its part of the loss alone. The first step is also computed on one device,
and the difference printed.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from digits import choose_devices, import_tensorflow, load_digits
from rich.console import Console

import evener

BATCH_SIZE = 256


def make_step(devices: tuple[evener.UsedDevice, ...]) -> Any:
    """Return the step."""
    import keras
    import tensorflow as tf
    from keras import layers

    encoder = keras.Sequential(
        [layers.Flatten(), layers.Dense(256, "gelu"), layers.Dropout(0.1), layers.Dense(32)]
    )
    # With the usual epsilon, 1e-7, rounding errors alone can make a visible first update.
    optimizer = keras.optimizers.Adam(1e-3, epsilon=1e-5)

    @evener.distribute(devices=[device.name for device in devices], verify=True)
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            codes = tf.math.l2_normalize(encoder(images, training=True), axis=1)
            alike = tf.cast(labels[:, None] == labels[None, :], tf.float32)
            alike -= tf.eye(tf.shape(labels)[0])
            logits = tf.matmul(codes, codes, transpose_b=True) / 0.2
            logits -= 1e9 * tf.eye(tf.shape(labels)[0])
            chances = tf.nn.log_softmax(logits)
            num_alike = tf.reduce_sum(alike, axis=1)
            of_each = -tf.math.divide_no_nan(tf.reduce_sum(alike * chances, axis=1), num_alike)
            loss = tf.reduce_mean(of_each)
        gradients = tape.gradient(loss, encoder.trainable_variables)
        optimizer.apply_gradients(zip(gradients, encoder.trainable_variables, strict=True))
        return loss

    return step


def main(
    devices: Annotated[str | None, typer.Option(help="A device spec, such as cpu:2.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 2,
) -> None:
    """Train an encoder of handwritten digits on all devices."""
    console = Console()
    tensorflow = import_tensorflow()
    digits = load_digits()
    step = make_step(evener.use_devices(choose_devices(devices, console)))
    data = tensorflow.data.Dataset.from_tensor_slices((digits.train_x, digits.train_y))
    for epoch in range(1, epochs + 1):
        losses = [float(step(*batch)) for batch in data.batch(BATCH_SIZE)]
        console.print(f"epoch {epoch}/{epochs}  loss {sum(losses) / len(losses):.4f}")
    gathered = sorted({entry.operation for entry in step.report().gathered})
    console.print(f"gathered: {', '.join(gathered) or 'nothing'}")


if __name__ == "__main__":
    typer.run(main)
