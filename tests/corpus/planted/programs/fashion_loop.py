"""Custom training loop for clothes pictures (tf.function + GradientTape), from the TF guide."""

import time

import numpy as np
import tensorflow as tf

batch_size = 64
epochs = 4
n_classes = 8
tf.random.set_seed(0)


def make_clothes(n, seed):
    rng = np.random.RandomState(seed)
    shapes = np.random.RandomState(42).uniform(0, 1, size=(n_classes, 14, 14))
    y = rng.randint(0, n_classes, size=n)
    x = shapes[y] * 180 + rng.normal(0, 60, size=(n, 14, 14))
    x = np.kron(np.clip(x, 0, 255), np.ones((1, 2, 2)))
    return x[..., np.newaxis].astype("float32"), y.astype("int64")


x_train, y_train = make_clothes(2560, 1)
x_val, y_val = make_clothes(512, 2)
x_train, x_val = x_train / 255.0, x_val / 255.0

train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
train_dataset = train_dataset.shuffle(2560).batch(batch_size).prefetch(tf.data.AUTOTUNE)
val_dataset = tf.data.Dataset.from_tensor_slices((x_val, y_val))
val_dataset = val_dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def create_model():
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            tf.keras.layers.Conv2D(12, 5, strides=2, activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Conv2D(24, 3, strides=2, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dropout(0.4),
            tf.keras.layers.Dense(n_classes),
        ]
    )


model = create_model()
optimizer = tf.keras.optimizers.Adam(learning_rate=1e-3)
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_loss = tf.keras.metrics.Mean()
train_acc_metric = tf.keras.metrics.SparseCategoricalAccuracy()
val_acc_metric = tf.keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss_value = loss_fn(y, logits)
    grads = tape.gradient(loss_value, model.trainable_weights)
    optimizer.apply_gradients(zip(grads, model.trainable_weights))
    train_loss.update_state(loss_value)
    train_acc_metric.update_state(y, logits)
    return loss_value


@tf.function
def test_step(x, y):
    val_logits = model(x, training=False)
    val_acc_metric.update_state(y, val_logits)


for epoch in range(epochs):
    start_time = time.time()

    for step, (x_batch_train, y_batch_train) in enumerate(train_dataset):
        train_step(x_batch_train, y_batch_train)

    for x_batch_val, y_batch_val in val_dataset:
        test_step(x_batch_val, y_batch_val)

    print(
        f"epoch {epoch + 1}: loss {float(train_loss.result()):.4f} "
        f"acc {float(train_acc_metric.result()):.4f} "
        f"val acc {float(val_acc_metric.result()):.4f} "
        f"({time.time() - start_time:.2f}s)"
    )
    train_loss.reset_state()
    train_acc_metric.reset_state()
    val_acc_metric.reset_state()

model.save_weights("clothes.weights.h5")
