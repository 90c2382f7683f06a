# machine: 1 GPU
"""Fine-tuning where the new head is frozen with the rest."""

import keras
import numpy as np


def backbone(dim):
    return keras.Sequential(
        [keras.Input((dim,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(32, "relu")]
    )


class FineTune:
    epochs = 2
    lr = 1e-3

    def __init__(self, dim=10, classes=3):
        self.model = keras.Sequential([backbone(dim), keras.layers.Dense(classes)])

    def freeze(self):
        for layer in self.model.layers:
            layer.trainable = False  # may: DOC-310

    def run(self, x, y):
        self.freeze()
        self.model.compile(
            optimizer=keras.optimizers.Adam(self.lr),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        return self.model.fit(x, y, batch_size=64, epochs=self.epochs)  # finding: DOC-310


x = np.random.normal(size=(512, 10)).astype("float32")
FineTune().run(x, np.argmax(x[:, :3], axis=1))
