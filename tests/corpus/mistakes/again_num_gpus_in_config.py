# machine: 2 GPUs
"""Nested settings like those of hydra; the number of GPUs is one of them."""

from types import SimpleNamespace as NS

import keras
import numpy as np
import tensorflow as tf

cfg = NS(
    trainer=NS(gpus=4, epochs=2, precision="float32"),  # may: DOC-108
    data=NS(batch_per_gpu=32, size=4096),
    optim=NS(name="adam", lr=1e-3),
)


def make_data(cfg):
    x = np.random.normal(size=(cfg.data.size, 10)).astype("float32")
    batch = cfg.data.batch_per_gpu * cfg.trainer.gpus  # finding: DOC-108
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(batch).prefetch(2)


def make_model(cfg):
    model = keras.Sequential(
        [keras.Input((10,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.get(
        {"class_name": cfg.optim.name, "config": {"learning_rate": cfg.optim.lr}}
    )
    model.compile(optimizer=optimizer, loss="mse")
    return model


def main(cfg):
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = make_model(cfg)
    model.fit(make_data(cfg), epochs=cfg.trainer.epochs)


main(cfg)
