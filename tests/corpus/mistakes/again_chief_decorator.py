# machine: 1 GPU
# environment: TF_CONFIG={"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": 0}}
"""A decorator lets the chief alone save; the variables are to be read on all workers."""

import functools

import keras
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()


def is_chief():
    resolver = strategy.cluster_resolver
    return resolver.task_type in (None, "chief") or resolver.task_id == 0


def chief_only(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        if is_chief():
            return fn(*args, **kwargs)

    return inner


with strategy.scope():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
    )
    model.compile(optimizer="adam", loss="mse")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, "/tmp/again_chief", max_to_keep=2)


@chief_only
def save():  # may: DOC-503
    path = manager.save()  # finding: DOC-503
    print("saved", path)


x = np.random.normal(size=(1024, 8)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, 0]))
data = data.batch(32 * strategy.num_replicas_in_sync).prefetch(2)
for _ in range(2):
    model.fit(data, epochs=1)
    save()  # may: DOC-503
