# machine: 2 GPUs
"""Each GPU trains a copy on its half of the data; only the first copy is ever used."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import Sequential
from tensorflow.keras.layers import Dense, Input


def make_model():
    model = Sequential([Input((11,)), Dense(22, activation="relu"), Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    return model


x = np.random.rand(1024, 11).astype("float32")
y = x.max(axis=1)

gpus = tf.config.list_logical_devices("GPU")
models = []
for i, gpu in enumerate(gpus):  # may: DOC-207
    with tf.device(gpu.name):  # may: DOC-302
        model = make_model()  # may: DOC-207
        model.fit(  # finding: DOC-207  # may: DOC-201
            x[i :: len(gpus)], y[i :: len(gpus)], batch_size=64, epochs=2, verbose=0
        )
    models.append(model)

models[0].save("model.keras")  # may: DOC-207
print("Trained on", len(models), "GPUs")
