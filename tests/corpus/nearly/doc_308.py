# machine: 1 GPU
"""Two optimizers for two parts; frozen before compile; a counter that is no weight."""

import keras
import numpy as np
import tensorflow as tf

body = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu")])
head = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
frozen = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
frozen.trainable = False
slow, fast = keras.optimizers.SGD(1e-3), keras.optimizers.SGD(1e-1)
steps = tf.Variable(0, trainable=False, dtype=tf.int64)


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(head(body(frozen(x))) - x[:, :1]))
    variables = body.trainable_variables + head.trainable_variables
    gradients = tape.gradient(loss, variables)
    count = len(body.trainable_variables)
    slow.apply_gradients(zip(gradients[:count], body.trainable_variables))
    fast.apply_gradients(zip(gradients[count:], head.trainable_variables))
    steps.assign_add(1)
    return loss


x = np.random.rand(256, 8).astype("float32")
for batch in tf.data.Dataset.from_tensor_slices(x).batch(64).prefetch(1):
    loss = train_step(batch)
print(int(steps), float(loss))

head.trainable = False
tuned = keras.Sequential([keras.Input((8,)), body, head])
tuned.compile("sgd", "mse")
tuned.fit(x, x[:, 0], batch_size=64, epochs=1, verbose=0)
