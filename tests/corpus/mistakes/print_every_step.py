# machine: 2 GPUs
"""A progress line for every step, with the loss and an accuracy by NumPy."""

import numpy as np
import tensorflow as tf
from tensorflow import keras


class Trainer:
    def __init__(self):
        self.strategy = tf.distribute.MirroredStrategy()
        self.batch = 64 * self.strategy.num_replicas_in_sync
        with self.strategy.scope():
            self.model = keras.Sequential([keras.Input((17,)), keras.layers.Dense(3)])
            self.optimizer = keras.optimizers.SGD(0.1)
            self.optimizer.build(self.model.trainable_variables)
            self.loss_fn = keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="none"
            )

    def _step(self, x, y):
        with tf.GradientTape() as tape:
            logits = self.model(x, training=True)
            loss = tf.nn.compute_average_loss(self.loss_fn(y, logits), global_batch_size=self.batch)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss, logits

    @tf.function
    def step(self, x, y):
        losses, logits = self.strategy.run(self._step, args=(x, y))
        total = self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        return total, self.strategy.gather(logits, axis=0), self.strategy.gather(y, axis=0)

    def train(self, dataset, epochs=2):
        dataset = self.strategy.experimental_distribute_dataset(dataset)
        for epoch in range(epochs):
            for i, (x, y) in enumerate(dataset):
                loss, logits, labels = self.step(x, y)
                right = np.mean(np.argmax(logits, 1) == labels.numpy())  # finding: DOC-402
                print(f"{epoch}/{i} loss {float(loss):.3f} acc {right:.3f}")  # finding: DOC-402


if __name__ == "__main__":
    trainer = Trainer()
    x = np.random.normal(size=(1024, 17)).astype("float32")
    y = np.argmax(x[:, :3], axis=1)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(trainer.batch, drop_remainder=True)
    trainer.train(data.prefetch(2))
