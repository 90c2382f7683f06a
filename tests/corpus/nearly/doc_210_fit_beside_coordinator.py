# machine: 1 GPU
"""Trains on parameter servers by a coordinator, then a model without a strategy, to compare."""

import sys

import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type != "chief":
    sys.exit("This is the coordinator of a cluster: set TF_CONFIG.")
strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
x = np.random.rand(4096, 16).astype("float32")

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((16,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


def dataset_fn():
    return tf.data.Dataset.from_tensor_slices(x).repeat().batch(64).prefetch(1)


@tf.function
def step(iterator):
    def replica(batch):
        with tf.GradientTape() as tape:
            squares = tf.reduce_sum(tf.square(model(batch) - batch[:, :1]), axis=1)
            loss = tf.nn.compute_average_loss(squares, global_batch_size=64)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.reduce("SUM", strategy.run(replica, args=(next(iterator),)), axis=None)


iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
for _ in range(20):
    result = coordinator.schedule(step, args=(iterator,))
coordinator.join()
print("loss", result.fetch())

alone = tf.keras.Sequential([tf.keras.Input((16,)), tf.keras.layers.Dense(256, "relu")])
alone.add(tf.keras.layers.Dense(1))
alone.compile(optimizer="sgd", loss="mse")
alone.fit(x, x[:, :1], batch_size=64)
print("loss", alone.evaluate(x, x[:, :1]))
