"""A loop with its body in line, in `main`."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
x = np.random.default_rng(0).normal(size=(60, 8)).astype("float32")
y = np.sin(x[:, :1])


def main():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    seen = []
    for epoch in range(3):
        order = np.random.default_rng(epoch).permutation(len(x))
        for start in range(0, len(x), 16):
            rows = order[start : start + 16]
            a, b = x[rows], y[rows]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(a, training=True) - b))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            seen.append(loss.numpy())
        print(f"epoch {epoch} loss {np.mean(seen[-4:]):.4f}")
    np.savez(sys.argv[1], np.array(seen), *model.get_weights())


if __name__ == "__main__":
    main()
