# machine: 2 GPUs
"""Only the chief calls save; the collective reads of the others never come."""

import json
import os

import numpy as np
import tensorflow as tf

os.environ.setdefault(
    "TF_CONFIG",
    json.dumps(
        {
            "cluster": {"worker": ["localhost:23456", "localhost:23457"]},
            "task": {"type": "worker", "index": 0},
        }
    ),
)


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    global_batch = 32 * strategy.num_replicas_in_sync

    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        total = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, total=total)

    def replica_step(x):
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(model(x) - x[:, :2]), axis=1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        total.assign_add(loss)

    @tf.function
    def train_step(x):
        strategy.run(replica_step, args=(x,))

    x = np.random.rand(256, 4).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(global_batch).prefetch(2)
    for batch in strategy.experimental_distribute_dataset(dataset):
        train_step(batch)

    if resolver.task_id == 0:  # may: DOC-503
        checkpoint.save("/tmp/chief/ckpt")  # finding: DOC-503


if __name__ == "__main__":
    main()
