# machine: 1 GPU
"""The gradients of the whole model are zipped with the variables of the encoder alone."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

encoder = keras.Sequential([keras.Input((30,)), keras.layers.Dense(8, activation="relu")])
decoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(30)])
optimizer = keras.optimizers.Adam(1e-3)


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(decoder(encoder(x)) - x))
    variables = encoder.trainable_variables + decoder.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(  # finding: DOC-308
        zip(gradients, encoder.trainable_variables)
    )
    return loss


x = np.random.rand(512, 30).astype("float32")
for batch in tf.data.Dataset.from_tensor_slices(x).batch(64).prefetch(2):
    loss = train_step(batch)
print("loss", float(loss))
