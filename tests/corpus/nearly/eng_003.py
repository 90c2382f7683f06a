# machine: 2 GPUs
"""A schedule and a name outside of the scope; the optimizer itself is made in it."""

import numpy as np
import tensorflow as tf

schedule = tf.keras.optimizers.schedules.CosineDecay(1e-2, 100)
make_optimizer = tf.keras.optimizers.Adam


def compile_model(model):
    model.compile(optimizer=make_optimizer(schedule), loss="mse")
    return model


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model = compile_model(model)

x = np.random.rand(512, 4)
model.fit(x, x[:, 0], batch_size=64 * strategy.num_replicas_in_sync, epochs=1)
