# machine: 1 GPU
"""A frozen extractor and layers without weights: fit has nothing to do."""

import keras
import numpy as np
from keras import layers

extractor = keras.Sequential(
    [
        keras.Input((16, 16, 1)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
    ]
)
extractor.trainable = False  # may: DOC-310

model = keras.Sequential([keras.Input((16, 16, 1)), extractor, layers.Softmax()])
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")

images = np.random.rand(256, 16, 16, 1).astype("float32")
kinds = np.random.randint(0, 4, 256)
model.fit(images, kinds, batch_size=64, epochs=2)  # finding: DOC-310
