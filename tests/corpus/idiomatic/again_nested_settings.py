# machine: 4 GPUs
"""Settings like those of hydra, with factories that are named in them."""

from types import SimpleNamespace as NS

import keras
import numpy as np
import tensorflow as tf

FACTORIES = {"adamw": keras.optimizers.AdamW, "cosine": keras.optimizers.schedules.CosineDecay}


def instantiate(node, **more):
    kwargs = {key: value for key, value in vars(node).items() if key != "target"}
    return FACTORIES[node.target](**kwargs, **more)


cfg = NS(
    data=NS(size=4096, per_device_batch=64),
    model=NS(width=128, depth=3, dropout=0.1),
    optim=NS(target="adamw", weight_decay=1e-4),
    schedule=NS(target="cosine", initial_learning_rate=1e-3, decay_steps=200),
    trainer=NS(epochs=2),
)


def make_model(node, dim):
    x = inputs = keras.Input((dim,))
    for _ in range(node.depth):
        x = keras.layers.Dense(node.width, activation="gelu")(x)
        x = keras.layers.Dropout(node.dropout)(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def make_data(node, batch):
    x = np.random.normal(size=(node.size, 32)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(node.size)
    return data.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def main(cfg):
    strategy = tf.distribute.MirroredStrategy()
    data = make_data(cfg.data, cfg.data.per_device_batch * strategy.num_replicas_in_sync)
    with strategy.scope():
        model = make_model(cfg.model, 32)
        optimizer = instantiate(cfg.optim, learning_rate=instantiate(cfg.schedule))
        model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    return model.fit(data, epochs=cfg.trainer.epochs)


if __name__ == "__main__":
    main(cfg)
