import os

import numpy as np

os.environ["KERAS_BACKEND"] = "tensorflow"  # finding: DOC-104

WIDTH = 32
LEARNING_RATE = 1e-3
BATCH_SIZE = 64
EPOCHS = 2


def synthetic_data():
    x = np.random.default_rng(0).normal(size=(256, 6)).astype("float32")
    return x, x[:, :2]
