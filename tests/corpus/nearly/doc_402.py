# machine: 1 GPU
"""The loss stays on the device; it is read once in an epoch, and now and then."""

import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam()
mean = tf.keras.metrics.Mean()


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - x[:, :1]))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    mean.update_state(loss)
    return loss


x = np.random.rand(2048, 8).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(x).batch(64).prefetch(2)
losses = []
for epoch in range(2):
    for step, batch in enumerate(dataset):
        loss = train_step(batch)
        losses.append(loss)
        if step % 10 == 0:
            print("step", step, "loss", float(loss))
        rate = float(1e-3 * 0.9**epoch)
        name = str(np.round(rate, 6))
    print("epoch", epoch, "loss", mean.result().numpy(), "rate", name)
    mean.reset_state()
print("all", tf.stack(losses).numpy().mean())
