# machine: 2 GPUs
"""A trainer class: the model is made in __init__, the scope comes with the optimizer."""

import numpy as np
import tensorflow as tf


class MLP(tf.keras.Model):
    def __init__(self, width):
        super().__init__()
        self.d1 = tf.keras.layers.Dense(width, activation="relu")
        self.d2 = tf.keras.layers.Dense(4)

    def call(self, x, training=False):
        return self.d2(self.d1(x))


class DistributedTrainer:
    def __init__(self, width=32, per_replica=32):
        self.strategy = tf.distribute.MirroredStrategy()
        self.batch_size = per_replica * self.strategy.num_replicas_in_sync
        self.model = MLP(width)  # finding: DOC-215
        self.model(tf.zeros([1, 10]))  # may: DOC-215
        with self.strategy.scope():
            self.optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)  # may: DOC-305
            self.loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="none"
            )

    def replica_step(self, x, y):
        with tf.GradientTape() as tape:
            per_example = self.loss_fn(y, self.model(x, training=True))
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=self.batch_size)
        grads = tape.gradient(loss, self.model.trainable_variables)
        gradients = zip(grads, self.model.trainable_variables)
        self.optimizer.apply_gradients(gradients)  # may: DOC-305
        return loss

    @tf.function
    def train_step(self, x, y):
        losses = self.strategy.run(self.replica_step, args=(x, y))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def fit(self, dataset, epochs):
        distributed = self.strategy.experimental_distribute_dataset(dataset)
        for epoch in range(epochs):
            total = 0.0
            for x, y in distributed:
                total += self.train_step(x, y)
            print(epoch, "loss", float(total))


if __name__ == "__main__":
    trainer = DistributedTrainer()
    x = np.random.normal(size=(640, 10)).astype("float32")
    y = np.argmax(x[:, :4], axis=1)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(640)
    trainer.fit(data.batch(trainer.batch_size, drop_remainder=True).prefetch(2), epochs=2)
