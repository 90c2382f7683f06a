# machine: 2 GPUs
"""nvidia-smi shows both cards full and only one of them at work."""

import keras
import numpy as np
import tensorflow as tf

print("Num GPUs Available:", len(tf.config.list_physical_devices("GPU")))

x_train = np.random.rand(1024, 28, 28, 1).astype("float32")
y_train = keras.utils.to_categorical(np.random.randint(0, 10, 1024), 10)

model = keras.Sequential(  # may: DOC-201
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
        keras.layers.MaxPooling2D(pool_size=(2, 2)),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=256, epochs=2, validation_split=0.1)  # finding: DOC-201
