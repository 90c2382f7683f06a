# machine: 2 GPUs
"""The experiment; how it is distributed is said in engine.py."""

import keras
import numpy as np
import tensorflow as tf

from engine import Engine, parallel


@parallel
def experiment(strategy, *, dim=12, epochs=2):
    def model_fn():
        return keras.Sequential(
            [keras.Input((dim,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
        )

    engine = Engine(strategy, model_fn=model_fn, per_replica_batch=64)
    x = np.random.normal(size=(2048, dim)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(2048)
    for epoch, loss in engine.epochs(data, num=epochs):
        print(f"epoch {epoch}: {loss:.4f}")


if __name__ == "__main__":
    experiment()
