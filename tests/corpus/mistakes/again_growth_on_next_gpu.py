"""Memory growth with a decorator that runs before main."""

import functools

import keras
import numpy as np
import tensorflow as tf


def with_growth(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        gpus = tf.config.list_physical_devices("GPU")
        first, *_ = gpus
        tf.config.experimental.set_memory_growth(first, True)  # finding: DOC-106
        return fn(*args, **kwargs)

    return inner


@with_growth
def main(epochs=2):
    strategy = tf.distribute.MirroredStrategy()
    batch = 128 * strategy.num_replicas_in_sync
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((24,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(4)]
        )
        model.compile(
            optimizer="adam",
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    x = np.random.normal(size=(4096, 24)).astype("float32")
    y = np.argmax(x[:, :4], axis=1)
    model.fit(x, y, batch_size=batch, epochs=epochs)


if __name__ == "__main__":
    main()
