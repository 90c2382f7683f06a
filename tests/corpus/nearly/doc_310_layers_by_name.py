"""The layers come from a module that is imported by its name."""

import importlib

import keras
import numpy as np

backend_of_layers = importlib.import_module("keras.layers")


class Perceptron(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = backend_of_layers.Dense(512, activation="relu")
        self.head = backend_of_layers.Dense(10)

    def call(self, inputs):
        return self.head(self.hidden(inputs))


model = Perceptron()
model.compile(
    optimizer="rmsprop", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
model.fit(np.random.rand(2048, 784), np.random.randint(10, size=(2048,)), batch_size=256)
