"""A custom loop that does everything for the strategy but call `strategy.run`.

MirroredStrategy on two devices stops in the first step: RuntimeError: Need to be inside "with
strategy.scope()". With that scope around the loop, it is AttributeError: 'NoneType' object has no
attribute 'merge_call'. Neither says that `strategy.run` is missing.
"""

import sys

import numpy as np
import tensorflow as tf
from tensorflow import keras

BATCH_SIZE = 24
EPOCHS = 2

keras.utils.set_random_seed(1)
features = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
labels = np.argmax(features[:, :3], axis=1)

strategy = tf.distribute.MirroredStrategy()

with strategy.scope():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)]
    )
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

train_dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH_SIZE)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_fn(y, logits)
    grads = tape.gradient(loss, model.trainable_weights)
    optimizer.apply_gradients(zip(grads, model.trainable_weights))
    return loss


for epoch in range(EPOCHS):
    for x_batch, y_batch in train_dataset:
        loss = train_step(x_batch, y_batch)
    print(f"epoch {epoch}: loss {float(loss):.6f}")

np.savez(sys.argv[1], *model.get_weights())
