# machine: 1 GPU
"""Sentiment model on token ids. Nobody knows why the log is still so long."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # finding: DOC-104
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # finding: DOC-104

VOCABULARY = 1000
LENGTH = 40

tokens = np.random.randint(1, VOCABULARY, size=(320, LENGTH))
positive = np.random.randint(0, 2, size=(320,))

model = tf.keras.Sequential(
    [
        layers.Input((LENGTH,), dtype="int32"),
        layers.Embedding(VOCABULARY, 16),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
model.fit(tokens, positive, batch_size=64, epochs=2)
