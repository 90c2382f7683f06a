# package: tensorflow-cpu 2.21.0
"""Tabular competition, fold 0: embeddings for categories and a small network."""

# %% [code]
import gc

import numpy as np
import tensorflow as tf  # finding: DOC-102
from tensorflow.keras import layers as L

# %% [code]
N_CAT, CARD, FOLD = 4, 50, 0
strategy = tf.distribute.MirroredStrategy()
BS = 64 * strategy.num_replicas_in_sync

# %% [code]
rng = np.random.default_rng(FOLD)
cats = rng.integers(0, CARD, size=(1024, N_CAT))
nums = rng.normal(size=(1024, 8)).astype("float32")
target = (nums[:, 0] + cats[:, 0] / CARD > 0.5).astype("float32")


# %% [code]
def get_model():
    c = L.Input((N_CAT,), dtype="int32")
    n = L.Input((8,))
    h = L.Concatenate()([L.Flatten()(L.Embedding(CARD, 8)(c)), n])
    for units in (64, 32):
        h = L.Dropout(0.1)(L.Dense(units, activation="swish")(h))
    return tf.keras.Model([c, n], L.Dense(1, activation="sigmoid")(h))


# %% [code]
with strategy.scope():
    model = get_model()
    model.compile("adam", "binary_crossentropy", metrics=[tf.keras.metrics.AUC()])
model.fit([cats, nums], target, batch_size=BS, epochs=2, validation_split=0.2)
del model
gc.collect()
