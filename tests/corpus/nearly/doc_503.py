# machine: 1 GPU
"""All workers save, the chief to the real folder; only printing is the chief's alone."""

import json
import os
import pathlib
import sys
import tempfile

import tensorflow as tf

if "TF_CONFIG" not in os.environ:
    sys.exit("Set TF_CONFIG.")
print(json.loads(os.environ["TF_CONFIG"])["cluster"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
is_chief = resolver.task_id in (None, 0)
folder = pathlib.Path("/tmp/run" if is_chief else tempfile.mkdtemp())

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = tf.random.uniform([256, 4])
data = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).repeat()
data = data.batch(64 * strategy.num_replicas_in_sync).prefetch(1)
model.fit(data, epochs=1, steps_per_epoch=4)

model.save(folder / "model.keras")
if is_chief:
    print("saved in", folder)
