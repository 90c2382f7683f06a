"""train_on_batch as the step that strategy.run is given."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")

x = np.random.rand(1024, 8).astype("float32")
y = x[:, :1]
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(128).prefetch(tf.data.AUTOTUNE)
distributed = strategy.experimental_distribute_dataset(dataset)


def step(features, labels):
    return model.train_on_batch(features, labels)  # finding: DOC-211


for features, labels in distributed:
    strategy.run(step, args=(features, labels))
