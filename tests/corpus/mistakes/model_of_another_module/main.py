# machine: 2 GPUs
"""The model is made when its module is imported, which is before any strategy."""

import numpy as np
import tensorflow as tf
from net import model

strategy = tf.distribute.MirroredStrategy()

with strategy.scope():
    model.compile(optimizer="adam", loss="binary_crossentropy")  # may: DOC-215

texts = np.random.randint(0, 500, size=(512, 20))
spam = np.random.randint(0, 2, size=(512, 1))
model.fit(  # may: DOC-215
    texts, spam, batch_size=64 * strategy.num_replicas_in_sync, epochs=2
)
