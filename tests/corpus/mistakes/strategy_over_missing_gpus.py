# machine: 2 GPUs
"""The list of devices is that of the old server."""

import numpy as np
from tensorflow import distribute as d
from tensorflow import keras as K

GPUS = ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]  # may: DOC-107


def main():
    strategy = d.MirroredStrategy(devices=GPUS)  # finding: DOC-107
    with strategy.scope():
        model = K.Sequential(
            [
                K.Input((100,)),
                K.layers.Dense(64, activation="relu"),
                K.layers.Dropout(0.2),
                K.layers.Dense(5, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy")

    x = np.random.rand(1024, 100).astype("float32")
    y = np.random.randint(0, 5, size=1024)
    model.fit(x, y, epochs=2, batch_size=64 * strategy.num_replicas_in_sync)


if __name__ == "__main__":
    main()
