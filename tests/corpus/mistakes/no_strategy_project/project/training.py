import keras
import numpy as np

from project.model import Regressor


class Trainer:
    def __init__(self, hidden, batch_size):
        self.batch_size = batch_size
        self.model = Regressor(hidden)  # may: DOC-201
        self.model.compile(optimizer=keras.optimizers.Nadam(1e-3), loss="huber")

    def train(self, epochs):
        x = np.random.normal(size=(1024, 9)).astype("float32")
        y = (x**2).sum(axis=1)
        callbacks = [keras.callbacks.TerminateOnNaN()]
        self.model.fit(  # finding: DOC-201
            x, y, batch_size=self.batch_size, epochs=epochs, callbacks=callbacks
        )
