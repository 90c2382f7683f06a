# machine: 1 GPU
"""A new tf.function in every epoch, and one for every batch."""

import argparse

import keras
import numpy as np
import tensorflow as T


def make_step(model, optimizer):
    @T.function
    def step(x, y):
        with T.GradientTape() as tape:
            loss = T.reduce_mean(T.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(5)])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    x = np.random.rand(512, 5).astype("float32")
    dataset = T.data.Dataset.from_tensor_slices((x, x)).batch(64).prefetch(2)
    for epoch in range(args.epochs):
        step = make_step(model, optimizer)  # finding: DOC-403
        for features, targets in dataset:
            step(features, targets)
        for features, targets in dataset.take(2):
            error = T.function(lambda a, b: T.reduce_mean(abs(model(a) - b)))  # finding: DOC-403
            error(features, targets)


if __name__ == "__main__":
    main()
