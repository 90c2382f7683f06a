import keras
import tensorflow as tf


class ReplicaTrainer:
    def __init__(self):
        self.strategy = tf.distribute.MirroredStrategy()
        self.global_batch = 32 * self.strategy.num_replicas_in_sync
        with self.strategy.scope():
            self.model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
            self.optimizer = keras.optimizers.SGD(0.01)
            self.optimizer.build(self.model.trainable_variables)
            self.seen = keras.metrics.Mean()

    def _step(self, x, y):
        with tf.GradientTape() as tape:
            squares = tf.reduce_sum((self.model(x, training=True) - y) ** 2, axis=1)
            loss = tf.nn.compute_average_loss(squares, global_batch_size=self.global_batch)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.seen.update_state(squares)

    def train_batch(self, x, y):
        self.strategy.run(self._step, args=(x, y))  # finding: ENG-060

    def report(self, epoch):
        print("epoch", epoch, "squared error", float(self.seen.result()))
        self.seen.reset_state()
