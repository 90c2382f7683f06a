# machine: 1 GPU
"""Variables for TensorFlow before the import; one for another library after it."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

# Read by matplotlib when it is first imported, and by our own reports.
os.environ["MPLBACKEND"] = "Agg"
os.environ["REPORT_FOLDER"] = "/tmp"
# The import of TensorFlow alone initialises no device.
os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.rand(256, 4)
model.fit(x, x[:, 0], batch_size=64, epochs=1)
print(os.environ["REPORT_FOLDER"], tf.__version__)
