# machine: 2 GPUs
"""A regression trainer in a class; np.mean's habit in the replica's step."""

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Options:
    per_replica: int = 32
    learning_rate: float = 0.01
    epochs: int = 2


class RegressionTrainer:
    def __init__(self, options):
        self.options = options
        self.strategy = tf.distribute.MirroredStrategy()
        self.batch_size = options.per_replica * self.strategy.num_replicas_in_sync
        with self.strategy.scope():
            self.model = keras.Sequential(
                [keras.Input((5,)), keras.layers.Dense(10, "tanh"), keras.layers.Dense(1)]
            )
            self.optimizer = keras.optimizers.SGD(options.learning_rate)
            self.optimizer.build(self.model.trainable_variables)

    def replica_step(self, x, y):
        with tf.GradientTape() as tape:
            prediction = self.model(x, training=True)
            squares = keras.losses.mean_squared_error(y, prediction)
            loss = tf.reduce_mean(squares)  # finding: DOC-214
        grads = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.model.trainable_variables))
        return loss

    @tf.function
    def step(self, batch):
        losses = self.strategy.run(self.replica_step, args=batch)
        return self.strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    def train(self, x, y):
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(self.batch_size).prefetch(1)
        data = self.strategy.experimental_distribute_dataset(data)
        for epoch in range(self.options.epochs):
            for batch in data:
                loss = self.step(batch)
            print(f"epoch {epoch} loss {float(loss):.4f}")


if __name__ == "__main__":
    x = np.random.normal(size=(512, 5)).astype("float32")
    RegressionTrainer(Options()).train(x, x[:, :1])
