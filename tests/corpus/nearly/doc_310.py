# machine: 1 GPU
"""A frozen base under a head that trains; a model without weights that is only used."""

import keras
import numpy as np
from keras import layers

base = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(4, 3), layers.Flatten()])
base.trainable = False
model = keras.Sequential([keras.Input((8, 8, 1)), base, layers.Dense(1)])
model.compile("adam", "mse")

rescale = keras.Sequential([keras.Input((8, 8, 1)), layers.Rescaling(1 / 255), layers.Flatten()])
images = np.random.randint(0, 255, size=(256, 8, 8, 1)).astype("float32")
means = rescale.predict(images, verbose=0).mean(axis=1)
model.fit(images / 255, means, batch_size=64, epochs=1)
