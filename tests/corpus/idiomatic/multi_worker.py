# machine: 1 GPU
"""One of several workers: TF_CONFIG is written before the strategy reads it."""

import argparse
import json
import os

import numpy as np


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", nargs="+", default=["localhost:12345"])
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--per-worker-batch", type=int, default=64)
    return parser.parse_args()


def main():
    args = parse_args()
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": args.workers}, "task": {"type": "worker", "index": args.index}}
    )

    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    global_batch = args.per_worker_batch * strategy.num_replicas_in_sync

    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((10,)), tf.keras.layers.Dense(20, "relu"), tf.keras.layers.Dense(1)]
        )
        optimizer = tf.keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(model(x, training=True) - y), axis=1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def train_step(x, y):
        losses = strategy.run(replica_step, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    x = np.random.default_rng(0).normal(size=(512, 10)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(global_batch).prefetch(2)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = strategy.experimental_distribute_dataset(dataset.with_options(options))
    for epoch in range(2):
        for features, targets in dataset:
            loss = train_step(features, targets)
        print("epoch", epoch, "loss", float(loss))


if __name__ == "__main__":
    main()
