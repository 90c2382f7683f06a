# machine: 1 GPU
"""The number of the step is a Python number, so that every step is traced anew."""

import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.Input((10,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.1)


@tf.function
def train_step(x, y, step):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        loss *= 1.0 / (1.0 + 0.01 * step)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(  # may: DOC-305
        zip(gradients, model.trainable_variables)
    )
    return loss


x = np.random.normal(size=(1024, 10)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(64).prefetch(tf.data.AUTOTUNE)
for step, (x_batch, y_batch) in enumerate(dataset):
    loss = train_step(x_batch, y_batch, step)  # finding: DOC-403
print("loss", float(loss))
