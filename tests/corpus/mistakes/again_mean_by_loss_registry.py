"""Losses by a registry; each gives the mean of what its replica sees."""

import keras
import numpy as np
import tensorflow as tf

LOSSES = {}


def loss(name):
    return lambda fn: LOSSES.setdefault(name, fn)


@loss("l2")
def l2(target, output):
    return tf.reduce_mean(tf.square(target - output))  # may: DOC-214


@loss("huber")
def huber(target, output, delta=1.0):
    error = tf.abs(target - output)
    small = tf.minimum(error, delta)
    return tf.reduce_mean(0.5 * small**2 + delta * (error - small))  # may: DOC-214


class Distributed:
    def __init__(self, strategy, model, optimizer, loss_fn):
        self.strategy, self.model = strategy, model
        self.optimizer, self.loss_fn = optimizer, loss_fn

    def _on_replica(self, x, y):
        with tf.GradientTape() as tape:
            value = self.loss_fn(y, self.model(x, training=True))  # finding: DOC-214
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(  # may: DOC-214
            zip(tape.gradient(value, variables), variables)
        )
        return value

    @tf.function
    def step(self, x, y):
        values = self.strategy.run(self._on_replica, args=(x, y))
        return self.strategy.reduce(tf.distribute.ReduceOp.MEAN, values, axis=None)


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((7,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
trainer = Distributed(strategy, model, optimizer, LOSSES["huber"])
x = np.random.normal(size=(2048, 7)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(64 * strategy.num_replicas_in_sync)
for batch in strategy.experimental_distribute_dataset(data.prefetch(2)):
    value = trainer.step(*batch)
print("loss", float(value))
