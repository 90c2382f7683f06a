"""An `Accelerator` of one's own holds a strategy that no one asks for anything."""

import keras
import numpy as np
import tensorflow as tf


class Accelerator:
    def __init__(self, *, precision="float32"):
        self.strategy = tf.distribute.MirroredStrategy()  # finding: DOC-202  # may: DOC-201
        keras.config.set_dtype_policy(precision)

    @property
    def num_devices(self):
        return self.strategy.num_replicas_in_sync

    def prepare(self, model, optimizer):
        model.compile(optimizer=optimizer, loss="mse")
        return model

    def loader(self, arrays, batch):
        dataset = tf.data.Dataset.from_tensor_slices(arrays).batch(batch * self.num_devices)
        return dataset.prefetch(tf.data.AUTOTUNE)


def main():
    accelerator = Accelerator()
    print("devices:", accelerator.num_devices)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)]
    )
    model = accelerator.prepare(model, keras.optimizers.Adam(1e-3))
    x = np.random.normal(size=(4096, 8)).astype("float32")
    model.fit(accelerator.loader((x, x.mean(1)), 64), epochs=2)  # may: DOC-201


if __name__ == "__main__":
    main()
