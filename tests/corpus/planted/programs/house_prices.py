"""House price regression with a hand-written loop. Ames-like columns, prices in 100k dollars."""

import argparse

import numpy as np
import tensorflow as tf
from keras import layers, optimizers, Sequential, Input

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.003)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch", type=int, default=64)
args = parser.parse_args()

np.random.seed(0)
tf.random.set_seed(0)

FEATURES = 12
n = 4096
X = np.random.randn(n, FEATURES).astype(np.float32) * np.random.uniform(1, 50, FEATURES).astype(
    np.float32
)
w_true = np.random.randn(FEATURES) / X.std(axis=0)
price = X @ w_true + 0.4 * np.sin(X[:, 0]) + 2.5
price = (price + np.random.randn(n) * 0.1).astype(np.float32)

X_train, X_valid = X[:3584], X[3584:]
y_train, y_valid = price[:3584], price[3584:]

mean, std = X_train.mean(axis=0), X_train.std(axis=0)
X_train = (X_train - mean) / std
X_valid = (X_valid - mean) / std

train_ds = (
    tf.data.Dataset.from_tensor_slices((X_train, y_train))
    .shuffle(len(X_train))
    .batch(args.batch)
    .prefetch(2)
)
valid_ds = tf.data.Dataset.from_tensor_slices((X_valid, y_valid)).batch(256)

net = Sequential(
    [
        Input((FEATURES,)),
        layers.Dense(128, activation="relu"),
        layers.Dense(128, activation="relu"),
        layers.Dense(64, activation="relu"),
        layers.Dense(1),
    ]
)
opt = optimizers.Adam(args.lr)


def mse(y, pred):
    return tf.reduce_mean(tf.square(y - pred))


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        pred = tf.squeeze(net(x, training=True), axis=-1)
        loss = mse(y, pred)
    variables = net.trainable_variables
    opt.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


@tf.function
def validate(x, y):
    return mse(y, tf.squeeze(net(x, training=False), axis=-1))


for epoch in range(args.epochs):
    total = 0.0
    batches = 0
    for x, y in train_ds:
        total += step(x, y)
        batches += 1
    val = np.mean([validate(x, y) for x, y in valid_ds])
    print(f"epoch {epoch:2d}  train mse {float(total) / batches:.4f}  valid mse {val:.4f}")

pred = net.predict(X_valid, batch_size=256, verbose=0)[:, 0]
r2 = 1 - ((pred - y_valid) ** 2).sum() / ((y_valid - y_valid.mean()) ** 2).sum()
print("R2 on the validation houses:", round(float(r2), 3))
