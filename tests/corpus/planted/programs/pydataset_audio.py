"""Spoken-command classifier on spectrograms, fed by a keras.utils.PyDataset."""

import math

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(6)

COMMANDS = ["yes", "no", "up", "down", "left", "right"]
FRAMES, BINS = 40, 32
BATCH = 48
EPOCHS = 4


def synth(command, rng):
    """A 'spectrogram': two formants that move differently for each command."""
    t = np.linspace(0, 1, FRAMES)[:, None]
    f = np.arange(BINS)[None, :]
    first = 6 + 2 * command + 5 * np.sin(3 * t + command)
    second = 26 - 2 * command + 3 * np.cos(4 * t * (command + 1))
    spec = np.exp(-((f - first) ** 2) / 6) + 0.7 * np.exp(-((f - second) ** 2) / 6)
    return (spec + rng.normal(0, 0.25, (FRAMES, BINS))).astype("float32")


def make_corpus(n, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % len(COMMANDS)
    x = np.stack([synth(label, rng) for label in y])
    return x, y


class Clips(keras.utils.PyDataset):
    """Batches of clips, shuffled at the end of every epoch."""

    def __init__(self, x, y, batch_size, shuffle, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = x, y
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.order = np.arange(len(x))
        self.on_epoch_end()

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, index):
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        return self.x[rows], self.y[rows]

    def on_epoch_end(self):
        if self.shuffle:
            np.random.shuffle(self.order)


x_train, y_train = make_corpus(2400, 0)
x_val, y_val = make_corpus(480, 1)
mu, sigma = x_train.mean(), x_train.std()
train = Clips((x_train - mu) / sigma, y_train, BATCH, shuffle=True)
val = Clips((x_val - mu) / sigma, y_val, BATCH, shuffle=False)

inputs = keras.Input((FRAMES, BINS))
x = layers.Reshape((FRAMES, BINS, 1))(inputs)
x = layers.Conv2D(12, 3, activation="relu")(x)
x = layers.MaxPooling2D()(x)
x = layers.Conv2D(24, 3, activation="relu")(x)
x = layers.MaxPooling2D()(x)
x = layers.Flatten()(x)
x = layers.Dropout(0.3)(x)
outputs = layers.Dense(len(COMMANDS), activation="softmax")(x)
model = keras.Model(inputs, outputs)

model.compile(
    optimizer=keras.optimizers.AdamW(1e-3, weight_decay=1e-4),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=["accuracy"],
)
model.fit(train, validation_data=val, epochs=EPOCHS, verbose=2)

confusion = np.zeros((len(COMMANDS),) * 2, int)
for truth, guess in zip(y_val, model.predict((x_val - mu) / sigma, verbose=0).argmax(1)):
    confusion[truth, guess] += 1
print(confusion)
print("accuracy", np.trace(confusion) / confusion.sum())
model.save("commands.keras")
