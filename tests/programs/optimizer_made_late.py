"""Functions: the model is made in the scope, the optimizer later, where the loop begins.

MirroredStrategy on two devices stops in the first step: RuntimeError: Mixing different
tf.distribute.Strategy objects.
"""

import sys

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

GLOBAL_BATCH_SIZE = 32


def get_dataset():
    x = np.random.default_rng(0).integers(0, 50, size=(96, 10))
    y = (x.mean(axis=1, keepdims=True) > 25).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH_SIZE)


def build_model():
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int32"),
            layers.Embedding(50, 8),
            layers.LSTM(8),
            layers.Dense(1, activation="sigmoid"),
        ]
    )


def train(model, strategy, dataset, epochs):
    bce = keras.losses.BinaryCrossentropy(reduction="none")
    optimizer = keras.optimizers.Adam(1e-2)

    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            per_example_loss = bce(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(list(zip(grads, model.trainable_variables)))
        return loss

    @tf.function
    def train_step(inputs):
        losses = strategy.run(step_fn, args=(inputs,))
        return strategy.reduce("SUM", losses, axis=None)

    for epoch in range(epochs):
        for batch in strategy.experimental_distribute_dataset(dataset):
            loss = train_step(batch)
        print(f"Epoch {epoch + 1}, loss {loss.numpy():.6f}")


def main():
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = build_model()
    train(model, strategy, get_dataset(), epochs=2)
    np.savez(sys.argv[1], *model.get_weights())


if __name__ == "__main__":
    main()
