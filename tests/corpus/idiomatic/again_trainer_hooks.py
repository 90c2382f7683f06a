# machine: 2 GPUs
"""A Trainer with hooks that a task overrides; the base class does the distribution."""

import abc

import keras
import numpy as np
import tensorflow as tf


class Trainer(abc.ABC):
    per_replica = 64
    log_every = 10

    def __init__(self):
        self.strategy = tf.distribute.MirroredStrategy()
        self.global_batch = self.per_replica * self.strategy.num_replicas_in_sync
        with self.strategy.scope():
            self.model = self.make_model()
            self.optimizer = self.make_optimizer()
            self.optimizer.build(self.model.trainable_variables)

    @abc.abstractmethod
    def make_model(self): ...

    @abc.abstractmethod
    def dataset(self): ...

    @abc.abstractmethod
    def losses(self, x, y, training): ...

    def make_optimizer(self):
        return keras.optimizers.Adam(1e-3)

    def on_log(self, step, loss):
        print(f"step {step}: {loss:.4f}")

    def _replica_step(self, x, y):
        with tf.GradientTape() as tape:
            each = self.losses(x, y, training=True)
            loss = tf.nn.compute_average_loss(each, global_batch_size=self.global_batch)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    @tf.function
    def train_step(self, x, y):
        losses = self.strategy.run(self._replica_step, args=(x, y))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def train(self, epochs):
        data = self.strategy.experimental_distribute_dataset(self.dataset())
        step = 0
        for _ in range(epochs):
            for x, y in data:
                loss = self.train_step(x, y)
                step += 1
                if step % self.log_every == 0:
                    self.on_log(step, float(loss))


class Regression(Trainer):
    def make_model(self):
        return keras.Sequential(
            [keras.Input((10,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
        )

    def dataset(self):
        x = np.random.normal(size=(4096, 10)).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).shuffle(4096)
        return data.batch(self.global_batch).prefetch(tf.data.AUTOTUNE)

    def losses(self, x, y, training):
        return tf.reduce_mean(tf.square(self.model(x, training=training) - y), axis=-1)


if __name__ == "__main__":
    Regression().train(epochs=2)
