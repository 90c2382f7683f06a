# machine: 2 GPUs
"""A trainer compiles its step when it is made, and runs it eagerly for one batch in a check."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

BATCH = 128
features = np.random.rand(4096, 12).astype("float32")
targets = features.mean(axis=1, keepdims=True)


class Trainer:
    def __init__(self):
        self.strategy = tf.distribute.MirroredStrategy()
        with self.strategy.scope():
            self.net = keras.Sequential(
                [keras.Input((12,)), keras.layers.Dense(32), keras.layers.Dense(1)]
            )
            self.opt = keras.optimizers.Adam(1e-3)
            self.opt.build(self.net.trainable_variables)

        self.step = tf.function(lambda x, y: self.strategy.run(self.replica_step, args=(x, y)))

    def replica_step(self, x, y):
        with tf.GradientTape() as tape:
            per_sample = tf.reduce_mean(tf.square(y - self.net(x, training=True)), axis=1)
            loss = tf.nn.compute_average_loss(per_sample, global_batch_size=BATCH)
        grads = tape.gradient(loss, self.net.trainable_variables)
        self.opt.apply_gradients(zip(grads, self.net.trainable_variables))
        return loss

    def train(self, dataset, epochs):
        distributed = self.strategy.experimental_distribute_dataset(dataset)
        first = next(iter(distributed))
        self.strategy.run(self.replica_step, args=first)
        for epoch in range(epochs):
            for x, y in distributed:
                losses = self.step(x, y)
            total = self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
            print("epoch", epoch, "loss", float(total))


Trainer().train(tf.data.Dataset.from_tensor_slices((features, targets)).batch(BATCH), 4)
