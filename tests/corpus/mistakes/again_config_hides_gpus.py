"""A research script: everything comes from one dict of settings, also the GPU of its owner."""

import os

CFG = {
    "runtime": {"gpu": "-1", "seed": 7},
    "model": {"width": 64, "depth": 2, "act": "gelu"},
    "optim": {"lr": 3e-4, "clipnorm": 1.0},
    "data": {"n": 512, "batch": 64},
}

os.environ["CUDA_VISIBLE_DEVICES"] = CFG["runtime"]["gpu"]  # finding: DOC-101

import keras
import numpy as np
import tensorflow as tf

BLOCKS = {}


def register(name):
    def wrap(fn):
        BLOCKS[name] = fn
        return fn

    return wrap


@register("mlp")
def mlp(x, *, width, depth, act):
    for _ in range(depth):
        x = keras.layers.Dense(width, activation=act)(x)
    return x


def build(cfg):
    inputs = keras.Input((16,))
    outputs = keras.layers.Dense(1)(BLOCKS["mlp"](inputs, **cfg["model"]))
    return keras.Model(inputs, outputs)


keras.utils.set_random_seed(CFG["runtime"]["seed"])
strategy = tf.distribute.MirroredStrategy()
print("training on", strategy.num_replicas_in_sync, "GPUs")
with strategy.scope():
    model = build(CFG)
    model.compile(
        optimizer=keras.optimizers.AdamW(**{"learning_rate": CFG["optim"]["lr"]}), loss="mse"
    )

x = np.random.normal(size=(CFG["data"]["n"], 16)).astype("float32")
model.fit(x, x.sum(1), batch_size=CFG["data"]["batch"] * strategy.num_replicas_in_sync, epochs=2)
