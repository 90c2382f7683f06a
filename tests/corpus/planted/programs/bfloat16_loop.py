"""Own loop in mixed precision with bfloat16, which needs no loss scaling. Logs every 100 steps."""

import tensorflow as tf
import keras
import numpy as np

keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
keras.utils.set_random_seed(35)
STEPS, BATCH, LOG_EVERY = 500, 64, 100


def moons(n, seed):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, n)
    t = rng.uniform(0, np.pi, n)
    x = np.where(label == 0, np.cos(t), 1 - np.cos(t))
    y = np.where(label == 0, np.sin(t), 0.5 - np.sin(t))
    return np.stack([x, y], 1) + rng.normal(0, 0.1, (n, 2)), label


def as_dataset(n, seed):
    x, y = moons(n, seed)
    return tf.data.Dataset.from_tensor_slices((x.astype("float32"), y.astype("float32")[:, None]))


train_ds = as_dataset(4000, 0).shuffle(4000).repeat().batch(BATCH).prefetch(tf.data.AUTOTUNE)
test_ds = as_dataset(1000, 1).batch(250)

model = keras.Sequential(
    [
        keras.Input((2,)),
        keras.layers.Dense(128, activation="gelu"),
        keras.layers.Dense(128, activation="gelu"),
        keras.layers.Dense(1, dtype="float32"),
    ]
)
optimizer = keras.optimizers.AdamW(5e-3)
bce = keras.losses.BinaryCrossentropy(from_logits=True)
accuracy = keras.metrics.BinaryAccuracy(threshold=0.0)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = bce(y, model(x, training=True))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


@tf.function
def test_step(x, y):
    accuracy.update_state(y, model(x, training=False))


for step, (x, y) in enumerate(train_ds.take(STEPS), start=1):
    loss = train_step(x, y)
    if step % LOG_EVERY == 0:
        print(f"step {step}: loss {loss.numpy():.4f}")

for x, y in test_ds:
    test_step(x, y)
print("test accuracy:", float(accuracy.result()))
