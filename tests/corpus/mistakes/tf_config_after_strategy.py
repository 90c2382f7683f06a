# machine: 1 GPU
"""TF_CONFIG is written when the strategy has already read it."""

import json
import os
import sys

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # may: DOC-208

os.environ["TF_CONFIG"] = json.dumps(  # finding: DOC-208
    {
        "cluster": {"worker": ["10.1.10.58:12345", "10.1.10.250:12345"]},
        "task": {"type": "worker", "index": int(sys.argv[1]) if len(sys.argv) > 1 else 0},
    }
)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")

x = np.random.rand(256, 4).astype("float32")
model.fit(x, x.sum(1), batch_size=64, epochs=2)  # finding: DOC-219
