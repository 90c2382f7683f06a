"""A Trainer with hooks: the strategy is there for the scope and the data, run is forgotten."""

import abc

import keras
import numpy as np
import tensorflow as tf


class Trainer(abc.ABC):
    def __init__(self, strategy, global_batch):
        self.strategy = strategy
        self.global_batch = global_batch
        with strategy.scope():
            self.model = self.make_model()
            self.optimizer = keras.optimizers.Adam(1e-3)
            self.optimizer.build(self.model.trainable_variables)

    @abc.abstractmethod
    def make_model(self): ...

    @abc.abstractmethod
    def loss(self, x, y): ...

    @tf.function
    def train_step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(x, y)
        grads = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.model.trainable_variables))
        return loss

    def fit(self, dataset, epochs):
        for epoch in range(epochs):
            for x, y in dataset:
                loss = self.train_step(x, y)  # finding: RUN-006
            self.on_epoch_end(epoch, loss)

    def on_epoch_end(self, epoch, loss):
        print(f"epoch {epoch}: {float(loss):.4f}")


class Classifier(Trainer):
    def make_model(self):
        return keras.Sequential(
            [keras.Input((20,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(3)]
        )

    def loss(self, x, y):
        each = keras.losses.sparse_categorical_crossentropy(
            y, self.model(x, training=True), from_logits=True
        )
        return tf.nn.compute_average_loss(each, global_batch_size=self.global_batch)


if __name__ == "__main__":
    strategy = tf.distribute.MirroredStrategy()  # may: RUN-006, DOC-202
    batch = 64 * strategy.num_replicas_in_sync
    x = np.random.normal(size=(1280, 20)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, np.argmax(x[:, :3], axis=1)))
    Classifier(strategy, batch).fit(data.batch(batch).prefetch(2), epochs=2)
