"""The optimizer is made when the first gradient is there: inside the replica function."""

import keras
import numpy as np
import tensorflow as tf


class Task:
    optimizer = None

    def __init__(self, strategy, global_batch):
        self.strategy, self.global_batch = strategy, global_batch
        with strategy.scope():
            self.model = keras.Sequential(
                [keras.Input((6,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
            )

    def replica_step(self, x, y):
        with tf.GradientTape() as tape:
            each = keras.losses.mean_squared_error(y, self.model(x, training=True))
            loss = tf.nn.compute_average_loss(each, global_batch_size=self.global_batch)
        variables = self.model.trainable_variables
        grads = tape.gradient(loss, variables)
        if self.optimizer is None:
            self.optimizer = keras.optimizers.Adam(  # finding: DOC-305  # may: RUN-009, ENG-003
                1e-3
            )
        self.optimizer.apply_gradients(zip(grads, variables))  # may: DOC-305
        return loss

    @tf.function
    def step(self, x, y):
        losses = self.strategy.run(self.replica_step, args=(x, y))
        return self.strategy.reduce("SUM", losses, axis=None)


strategy = tf.distribute.MirroredStrategy()
global_batch = 32 * strategy.num_replicas_in_sync
task = Task(strategy, global_batch)
x = np.random.normal(size=(512, 6)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(global_batch).prefetch(2)
for x, y in strategy.experimental_distribute_dataset(data):
    loss = task.step(x, y)
print(float(loss))
