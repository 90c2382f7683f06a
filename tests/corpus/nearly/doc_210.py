# machine: 1 GPU
"""Parameter servers as they are meant: with a coordinator that schedules the steps."""

import os
import sys

import tensorflow as tf

if "TF_CONFIG" not in os.environ:
    sys.exit("This is the coordinator of a cluster: set TF_CONFIG.")

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


def dataset_fn():
    x = tf.random.uniform([512, 4])
    return tf.data.Dataset.from_tensor_slices(x).repeat().batch(64).prefetch(1)


@tf.function
def step(iterator):
    def replica(x):
        with tf.GradientTape() as tape:
            squares = tf.reduce_sum(tf.square(model(x) - x[:, :1]), axis=1)
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
