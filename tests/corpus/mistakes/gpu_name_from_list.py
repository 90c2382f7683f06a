# machine: 2 GPUs
"""Fine-tunes on the last card, by the name that the list of cards gives."""

import keras
import numpy as np
import tensorflow as tf


def build():
    return keras.Sequential(
        [keras.Input((24,)), keras.layers.Dense(48, activation="relu"), keras.layers.Dense(4)]
    )


def fine_tune(model, x, y, device):
    optimizer = keras.optimizers.Adam(1e-3)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.device(device.name):  # finding: RUN-008
        for start in range(0, len(x), 64):
            with tf.GradientTape() as tape:
                loss = loss_fn(y[start : start + 64], model(x[start : start + 64]))
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables))


def main():
    gpus = tf.config.list_physical_devices("GPU")
    x = np.random.normal(size=(256, 24)).astype("float32")
    y = np.random.randint(0, 4, 256)
    model = build()
    fine_tune(model, x, y, gpus[-1])  # may: RUN-008, DOC-201
    model.save_weights("tuned.weights.h5")


if __name__ == "__main__":
    main()
