# machine: 2 GPUs
"""The slots are made in the scope, before the first step."""

import numpy as np
import tensorflow as tf


class Trainer:
    def __init__(self, strategy, batch_size):
        self.strategy, self.batch_size = strategy, batch_size
        with strategy.scope():
            self.model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
            self.optimizer = tf.keras.optimizers.Adam(1e-2)
            self.prepare()

    def prepare(self):
        self.optimizer.build(self.model.trainable_variables)

    def _step(self, x):
        with tf.GradientTape() as tape:
            squares = tf.reduce_sum(tf.square(self.model(x) - x[:, :1]), axis=1)
            loss = tf.nn.compute_average_loss(squares, global_batch_size=self.batch_size)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss

    @tf.function
    def step(self, x):
        return self.strategy.reduce("SUM", self.strategy.run(self._step, args=(x,)), axis=None)


strategy = tf.distribute.MirroredStrategy()
trainer = Trainer(strategy, 64 * strategy.num_replicas_in_sync)
data = tf.data.Dataset.from_tensor_slices(np.random.rand(512, 4).astype("float32"))
data = data.batch(trainer.batch_size).prefetch(1)
for x in strategy.experimental_distribute_dataset(data):
    loss = trainer.step(x)
print("loss", float(loss))
