"""A Keras 2 script: arguments of fit, of the optimizer and of the checkpoint that are gone."""

import numpy as np
from tensorflow import keras


class Batches(keras.utils.Sequence):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return np.random.rand(32, 8), np.random.rand(32, 1)


model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
sgd = keras.optimizers.SGD(lr=0.01, decay=1e-6, momentum=0.9)  # finding: DOC-004
model.compile(loss="mse", optimizer=sgd)  # may: DOC-201
best = keras.callbacks.ModelCheckpoint(  # finding: DOC-004
    "best-{epoch:02d}.hdf5", save_best_only=True, monitor="loss", period=2
)
model.fit_generator(  # finding: DOC-004  # may: DOC-201
    Batches(),
    epochs=2,
    callbacks=[best],
    workers=4,
    use_multiprocessing=True,
)
model.save("final_model")  # finding: DOC-004
