# machine: 2 GPUs
"""An except that can fire: there may be no TPU. MirroredStrategy is the fallback."""

import numpy as np
import tensorflow as tf

try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)
except ValueError:
    strategy = tf.distribute.MirroredStrategy()

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
x = np.random.rand(512, 4).astype("float32")
model.fit(x, x[:, 0], batch_size=64 * strategy.num_replicas_in_sync, epochs=1)
