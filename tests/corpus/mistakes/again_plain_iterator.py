"""`run` gets what a plain iterator over the dataset gives."""

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Config:
    per_replica: int = 32
    steps: int = 60
    lr: float = 1e-2


class Loop:
    cfg = Config()

    def __init__(self):
        self.strategy = tf.distribute.MirroredStrategy()
        self.batch = self.cfg.per_replica * self.strategy.num_replicas_in_sync
        with self.strategy.scope():
            self.model = keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)]
            )
            self.optimizer = keras.optimizers.Adam(self.cfg.lr)
            self.optimizer.build(self.model.trainable_variables)

    def stream(self):
        x = np.random.normal(size=(2048, 4)).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
        return iter(data.shuffle(2048).repeat().batch(self.batch).prefetch(tf.data.AUTOTUNE))

    def _replica(self, inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            each = tf.reduce_mean(tf.square(y - self.model(x, training=True)), axis=-1)
            loss = tf.nn.compute_average_loss(each, global_batch_size=self.batch)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    @tf.function
    def _step(self, inputs):
        losses = self.strategy.run(self._replica, args=(inputs,))  # finding: DOC-204
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def __call__(self):
        stream = self.stream()
        for step in range(self.cfg.steps):
            loss = self._step(next(stream))  # may: DOC-204
            if step % 20 == 0:
                tf.print("step", step, "loss", loss)


Loop()()
