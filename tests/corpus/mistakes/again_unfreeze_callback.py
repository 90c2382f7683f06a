# machine: 1 GPU
"""A callback thaws the backbone after two epochs; the compiled step does not see it."""

import keras
import numpy as np


class Unfreeze(keras.callbacks.Callback):
    def __init__(self, name, at):
        super().__init__()
        self.name, self.at = name, at

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.at:
            self.model.get_layer(self.name).trainable = True  # finding: DOC-308
            print("thawed", self.name)


def backbone():
    net = keras.Sequential(
        [keras.Input((24,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(32, "relu")],
        name="backbone",
    )
    net.trainable = False
    return net


inputs = keras.Input((24,))
model = keras.Model(inputs, keras.layers.Dense(1)(backbone()(inputs)))
model.compile(optimizer="adam", loss="mse")
x = np.random.normal(size=(1024, 24)).astype("float32")
model.fit(x, x[:, :1], batch_size=128, epochs=4, callbacks=[Unfreeze("backbone", 2)])
