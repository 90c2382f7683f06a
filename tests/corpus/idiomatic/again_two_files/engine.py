"""Training on all devices, given a function that makes the model."""

import functools

import keras
import tensorflow as tf


def parallel(fn):
    """Gives the function a strategy over all devices."""

    @functools.wraps(fn)
    def inner(**kwargs):
        return fn(tf.distribute.MirroredStrategy(), **kwargs)

    return inner


class Engine:
    def __init__(self, strategy, *, model_fn, per_replica_batch, lr=1e-3):
        self.strategy = strategy
        self.batch = per_replica_batch * strategy.num_replicas_in_sync
        with strategy.scope():
            self.model = model_fn()
            self.optimizer = keras.optimizers.Adam(lr)
            self.optimizer.build(self.model.trainable_variables)

    def _step(self, x, y):
        with tf.GradientTape() as tape:
            each = keras.losses.mean_squared_error(y, self.model(x, training=True))
            loss = tf.nn.compute_average_loss(each, global_batch_size=self.batch)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    @tf.function
    def step(self, batch):
        return self.strategy.reduce("SUM", self.strategy.run(self._step, args=batch), axis=None)

    def epochs(self, data, *, num):
        """Number and mean loss of each epoch."""
        data = data.batch(self.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
        data = self.strategy.experimental_distribute_dataset(data)
        for epoch in range(num):
            mean = keras.metrics.Mean()
            for batch in data:
                mean.update_state(self.step(batch))
            yield epoch, float(mean.result())
