"""Callbacks that change the rate, keep a record and stop at a time limit."""

import time

import keras
import numpy as np
import tensorflow as tf


class TimeLimit(keras.callbacks.Callback):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def on_train_begin(self, logs=None):
        self.end = time.monotonic() + self.seconds

    def on_train_batch_end(self, batch, logs=None):
        if time.monotonic() > self.end:
            self.model.stop_training = True


class Record(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rows = []

    def on_epoch_end(self, epoch, logs=None):
        rate = float(self.model.optimizer.learning_rate)
        self.rows.append({"epoch": epoch, "rate": rate, **(logs or {})})


def rate(epoch, now):
    return now if epoch < 2 else now * 0.5


x = np.random.normal(size=(4096, 40)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.std(1))).shuffle(4096).batch(256)
data = data.prefetch(tf.data.AUTOTUNE)
model = keras.Sequential(
    [keras.Input((40,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)]
)
model.compile(optimizer=keras.optimizers.RMSprop(1e-3), loss="huber")
record = Record()
model.fit(
    data,
    epochs=4,
    verbose=0,
    callbacks=[keras.callbacks.LearningRateScheduler(rate), record, TimeLimit(120)],
)
for row in record.rows:
    print(row)
