# machine: 1 GPU
"""The list of variables is taken before the model has any."""

import numpy as np
import tensorflow as tf


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.first = tf.keras.layers.Dense(20, activation="relu")
        self.second = tf.keras.layers.Dense(1)

    def call(self, x):
        return self.second(self.first(x))


model = Net()
variables = model.trainable_variables  # finding: DOC-308
optimizer = tf.keras.optimizers.RMSprop(1e-3)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradients = tape.gradient(loss, variables)  # may: DOC-308
    optimizer.apply_gradients(zip(gradients, variables))  # may: DOC-308
    return loss


x = np.random.rand(256, 10).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(64).prefetch(2)
for epoch in range(2):
    for features, targets in data:
        loss = step(features, targets)
    print(epoch, float(loss))
