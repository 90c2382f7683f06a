"""Distillation; the temperature cools down and is a Python float in each step."""

import math

import keras
import numpy as np
import tensorflow as tf


def cosine(start, end, steps):
    for i in range(steps):
        yield i, end + (start - end) * 0.5 * (1 + math.cos(math.pi * i / steps))


class Distiller:
    def __init__(self, strategy, batch):
        self.strategy, self.batch = strategy, batch
        with strategy.scope():
            self.teacher = self.net(128)
            self.student = self.net(16)
            self.optimizer = keras.optimizers.Adam(1e-3)
            self.optimizer.build(self.student.trainable_variables)

    @staticmethod
    def net(units):
        return keras.Sequential(
            [keras.Input((10,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(4)]
        )

    def replica(self, x, temperature):
        with tf.GradientTape() as tape:
            soft = tf.nn.softmax(self.teacher(x) / temperature)
            logits = self.student(x, training=True) / temperature
            each = tf.nn.softmax_cross_entropy_with_logits(soft, logits)
            loss = tf.nn.compute_average_loss(each, global_batch_size=self.batch)
        grads = tape.gradient(loss, self.student.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.student.trainable_variables))
        return loss

    @tf.function
    def step(self, x, temperature):
        losses = self.strategy.run(self.replica, args=(x, temperature))
        return self.strategy.reduce("SUM", losses, axis=None)


strategy = tf.distribute.MirroredStrategy()
batch = 64 * strategy.num_replicas_in_sync
distiller = Distiller(strategy, batch)
x = np.random.normal(size=(1024, 10)).astype("float32")
data = tf.data.Dataset.from_tensor_slices(x).repeat().batch(batch).prefetch(2)
stream = iter(strategy.experimental_distribute_dataset(data))
for i, temperature in cosine(4.0, 1.0, 50):
    loss = distiller.step(next(stream), temperature)  # finding: DOC-403
    if i % 25 == 0:
        print(i, float(loss))
