# machine: 1 GPU
"""The loss comes to the host after every step, to be put on a list."""

import numpy as np
import tensorflow as tf

model = tf.keras.Sequential(
    [tf.keras.Input((25,)), tf.keras.layers.Dense(50, "relu"), tf.keras.layers.Dense(1)]
)
optimizer = tf.keras.optimizers.Adam()
loss_fn = tf.keras.losses.MeanSquaredError()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


x = np.random.normal(size=(2048, 25)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(64).prefetch(tf.data.AUTOTUNE)

history = []
for epoch in range(2):
    for x_batch, y_batch in dataset:
        loss = train_step(x_batch, y_batch)
        history.append(loss.numpy())  # finding: DOC-402
    print("epoch", epoch, "mean loss", np.mean(history))
