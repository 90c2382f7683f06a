# machine: 2 GPUs
"""A class with an iterator of its own; nobody asked the strategy to split."""

import numpy as np
import tensorflow as tf


class Trainer:
    def __init__(self, dataset, strategy, batch_size):
        self.dataset = dataset  # may: DOC-204
        self.strategy = strategy
        self.batch_size = batch_size
        with strategy.scope():
            self.model = tf.keras.Sequential(
                [tf.keras.Input((6,)), tf.keras.layers.Dense(12, "relu"), tf.keras.layers.Dense(1)]
            )
            self.optimizer = tf.keras.optimizers.Adam()
            self.optimizer.build(self.model.trainable_variables)

    def _replica_step(self, x, y):
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(self.model(x, training=True) - y), axis=-1)
            loss = tf.reduce_sum(errors) / self.batch_size
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss

    @tf.function
    def _step(self, iterator):
        x, y = next(iterator)
        losses = self.strategy.run(self._replica_step, args=(x, y))  # finding: DOC-204
        return self.strategy.reduce("SUM", losses, axis=None)

    def train(self, steps):
        iterator = iter(self.dataset)  # may: DOC-204
        for _ in range(steps):
            loss = self._step(iterator)
        return float(loss)


def main():
    strategy = tf.distribute.MirroredStrategy()
    batch_size = 64 * strategy.num_replicas_in_sync
    x = np.random.normal(size=(1024, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] - x[:, 1:2]))
    data = data.shuffle(1024).repeat().batch(batch_size).prefetch(tf.data.AUTOTUNE)
    print("loss", Trainer(data, strategy, batch_size).train(20))


if __name__ == "__main__":
    main()
