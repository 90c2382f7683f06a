# machine: 4 GPUs
"""Numbers that are not numbers of devices; those are asked of the strategy."""

import numpy as np
import tensorflow as tf

NUM_CLASSES = 2
NUM_LAYERS = 4
NUM_WORKERS = 4  # threads that read

strategy = tf.distribute.MirroredStrategy()
num_gpus = strategy.num_replicas_in_sync
batch_size = 64 * num_gpus
learning_rate = 1e-3 * num_gpus

x = np.random.rand(512, 8).astype("float32")
y = np.random.randint(0, NUM_CLASSES, 512)
data = tf.data.Dataset.from_tensor_slices((x, y))
data = data.map(lambda a, b: (a / 2, b), num_parallel_calls=NUM_WORKERS)
data = data.batch(batch_size).prefetch(2)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((8,))])
    for _ in range(NUM_LAYERS):
        model.add(tf.keras.layers.Dense(8 * 2, activation="relu"))
    model.add(tf.keras.layers.Dense(NUM_CLASSES, activation="softmax"))
    model.compile(tf.keras.optimizers.Adam(learning_rate), "sparse_categorical_crossentropy")
model.fit(data, epochs=1)
