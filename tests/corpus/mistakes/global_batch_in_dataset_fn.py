# machine: 2 GPUs
"""distribute_datasets_from_function wants the batch of one replica and gets that of all."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
GLOBAL_BATCH = 64 * strategy.num_replicas_in_sync

x = np.random.normal(size=(1024, 8)).astype("float32")
y = np.tanh(x[:, :2])


def dataset_fn(context):
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).repeat()
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.batch(GLOBAL_BATCH).prefetch(tf.data.AUTOTUNE)  # finding: DOC-206


with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input((8,)), tf.keras.layers.Dense(16, "tanh"), tf.keras.layers.Dense(2)]
    )
    model.compile(optimizer="adam", loss="mse")

data = strategy.distribute_datasets_from_function(dataset_fn)  # may: DOC-206
model.fit(data, epochs=2, steps_per_epoch=8)
