# machine: 1 GPU
"""Keras's fit under a strategy for several workers, in a cluster of one."""

import json
import os

import numpy as np

os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": ["localhost:12399"]}, "task": {"type": "worker", "index": 0}}
)

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.random.default_rng(0).random((256, 4), "float32")
model.fit(x, x[:, :1], batch_size=64)
