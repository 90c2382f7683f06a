"""A trainer that gives the batches of a plain dataset to every replica."""

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

    def replica_step(self, x, y):
        with tf.GradientTape() as tape:
            per_sample = tf.reduce_mean(tf.square(y - self.net(x, training=True)), axis=1)
            loss = tf.nn.compute_average_loss(per_sample, global_batch_size=BATCH)
        grads = tape.gradient(loss, self.net.trainable_variables)
        self.opt.apply_gradients(zip(grads, self.net.trainable_variables))
        return loss

    @tf.function
    def train_on(self, x, y):
        losses = self.strategy.run(self.replica_step, args=(x, y))  # finding: DOC-216
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


trainer = Trainer()
pipeline = (
    tf.data.Dataset.from_tensor_slices((features, targets)).shuffle(4096).batch(BATCH).prefetch(2)
)
for epoch in range(4):
    total = 0.0
    for x, y in pipeline:
        total += trainer.train_on(x, y)
    print("epoch", epoch, "loss", float(total))
