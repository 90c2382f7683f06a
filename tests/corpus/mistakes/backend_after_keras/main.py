# machine: 1 GPU
"""The settings module sets the backend; Keras was imported a line before."""

import keras
import settings
from model import make_model


def train():
    x, y = settings.synthetic_data()
    model = make_model(settings.WIDTH)
    model.compile(optimizer=keras.optimizers.Adam(settings.LEARNING_RATE), loss="mse")
    model.fit(x, y, batch_size=settings.BATCH_SIZE, epochs=settings.EPOCHS)


if __name__ == "__main__":
    train()
