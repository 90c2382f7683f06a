# machine: 2 GPUs
"""A word model in a class; the strategy is used for its scope alone."""

import argparse

import keras
import numpy as np
import tensorflow as tf


class LanguageModelTrainer:
    def __init__(self, vocabulary, width, strategy):
        self.strategy = strategy
        with self.strategy.scope():
            self.model = keras.Sequential(
                [
                    keras.Input((None,), dtype="int32"),
                    keras.layers.Embedding(vocabulary, width),
                    keras.layers.LSTM(width, return_sequences=True),
                    keras.layers.Dense(vocabulary),
                ]
            )
            self.optimizer = keras.optimizers.Adam(1e-3)
            self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_on(self, tokens):
        with tf.GradientTape() as tape:
            logits = self.model(tokens[:, :-1], training=True)
            loss = self.loss(tokens[:, 1:], logits)
        gradients = tape.gradient(loss, self.model.trainable_weights)
        self.optimizer.apply(gradients, self.model.trainable_weights)
        return loss

    def train(self, dataset, epochs):
        step = tf.function(self.train_on)
        for epoch in range(epochs):
            for tokens in self.strategy.experimental_distribute_dataset(dataset):
                loss = step(tokens)  # finding: RUN-006
            print("epoch", epoch, "loss", loss)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    tokens = np.random.randint(0, 50, size=(512, 12)).astype("int32")
    strategy = tf.distribute.MirroredStrategy()  # may: RUN-006
    dataset = tf.data.Dataset.from_tensor_slices(tokens).batch(128).prefetch(tf.data.AUTOTUNE)
    LanguageModelTrainer(50, 16, strategy).train(dataset, args.epochs)


if __name__ == "__main__":
    main()
