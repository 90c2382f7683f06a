"""The strategy by name; the one that is asked for keeps the variables on the CPU."""

import keras
import numpy as np
import tensorflow as tf

STRATEGIES = {
    "mirrored": tf.distribute.MirroredStrategy,
    "central": tf.distribute.experimental.CentralStorageStrategy,  # may: DOC-210
}
CFG = {"strategy": "central", "batch": 64, "epochs": 2}


def build_strategy(name):
    return STRATEGIES[name]()  # may: DOC-210


strategy = build_strategy(CFG["strategy"])  # finding: DOC-210
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.SGD(1e-2), loss="mse")

x = np.random.normal(size=(1024, 16)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
data = data.batch(CFG["batch"] * strategy.num_replicas_in_sync).prefetch(2)
model.fit(data, epochs=CFG["epochs"])  # may: DOC-210
