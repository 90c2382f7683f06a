"""Gradients of several batches are added up before each step of the optimizer."""

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Options:
    batch: int = 32
    accumulate: int = 4
    epochs: int = 2
    rate: float = 1e-3


class Accumulator:
    def __init__(self, variables, optimizer, every):
        self.variables, self.optimizer, self.every = variables, optimizer, every
        self.sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]

    def add(self, gradients):
        for total, gradient in zip(self.sums, gradients):
            total.assign_add(gradient / self.every)

    def apply(self):
        self.optimizer.apply_gradients(zip(self.sums, self.variables))
        for total in self.sums:
            total.assign(tf.zeros_like(total))


def main(options):
    model = keras.Sequential(
        [keras.Input((18,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.Adam(options.rate)
    optimizer.build(model.trainable_variables)
    accumulator = Accumulator(model.trainable_variables, optimizer, options.accumulate)

    @tf.function
    def gather(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        accumulator.add(tape.gradient(loss, model.trainable_variables))
        return loss

    @tf.function
    def update():
        accumulator.apply()

    x = np.random.normal(size=(4096, 18)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(4096)
    data = data.batch(options.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    for epoch in range(options.epochs):
        mean = keras.metrics.Mean()
        for i, (x_batch, y_batch) in enumerate(data, 1):
            mean.update_state(gather(x_batch, y_batch))
            if i % options.accumulate == 0:
                update()
        print(f"epoch {epoch}: {float(mean.result()):.4f}")


if __name__ == "__main__":
    main(Options())
