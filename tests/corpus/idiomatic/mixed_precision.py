# machine: 1 GPU
"""float16 compute, float32 outputs, and a loss scaled by the optimizer's wrapper."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.mixed_precision.set_global_policy("mixed_float16")

inputs = keras.Input((32,))
x = layers.Dense(64, activation="relu")(inputs)
x = layers.Dense(64, activation="relu")(x)
outputs = layers.Dense(5, activation="softmax", dtype="float32")(x)
model = keras.Model(inputs, outputs)
optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1))
optimizer.build(model.trainable_variables)
loss_fn = keras.losses.SparseCategoricalCrossentropy()


@tf.function
def train_step(features, kinds):
    with tf.GradientTape() as tape:
        loss = loss_fn(kinds, model(features, training=True))
        scaled_loss = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled_loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


features = np.random.default_rng(0).normal(size=(512, 32)).astype("float32")
kinds = np.argmax(features[:, :5], axis=1)
dataset = tf.data.Dataset.from_tensor_slices((features, kinds)).shuffle(512).batch(64)
for epoch in range(2):
    for batch, labels in dataset.prefetch(tf.data.AUTOTUNE):
        loss = train_step(batch, labels)
    print("epoch", epoch, "loss", float(loss))
