# machine: 1 GPU
"""TF_CONFIG is read from the environment, and its absence is an error of its own."""

import json
import os
import sys

import numpy as np

if "TF_CONFIG" not in os.environ:
    sys.exit("Set TF_CONFIG: see README.md")
task = json.loads(os.environ["TF_CONFIG"])["task"]

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.random.rand(256, 4).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).repeat()
data = data.batch(64 * strategy.num_replicas_in_sync).prefetch(1)
model.fit(data, epochs=1, steps_per_epoch=4, verbose=int(task["index"] == 0))
