import tensorflow as tf
from tensorflow import distribute as d

from training.data import dataset
from training.network import network


class Loop:
    def __init__(self, config):
        self.strategy = d.MirroredStrategy()
        self.batch_size = config.per_replica_batch * self.strategy.num_replicas_in_sync
        data = dataset(self.batch_size)
        self.data = self.strategy.experimental_distribute_dataset(data)
        with self.strategy.scope():
            self.model = network(config.width)
            self.optimizer = tf.keras.optimizers.SGD(config.learning_rate, momentum=0.9)
            self.optimizer.build(self.model.trainable_variables)
            self.loss = tf.keras.losses.MeanSquaredError(reduction="none")

    def _replica(self, x, y):
        with tf.GradientTape() as tape:
            losses = self.loss(y, self.model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=self.batch_size)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss

    @tf.function
    def _step(self, batch):
        losses = self.strategy.run(self._replica, args=batch)
        return self.strategy.reduce(d.ReduceOp.SUM, losses, axis=None)

    def epoch(self):
        total, steps = 0.0, 0
        for batch in self.data:
            total += self._step(batch)
            steps += 1
        return float(total / steps)
