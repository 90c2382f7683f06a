"""Old project still on Keras 2 (tf_keras): a spring's energy with a subclassed model."""

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tf_keras import layers

np.random.seed(1)
tf.random.set_seed(1)

SAMPLES = 6000
BATCH_SIZE = 64
EPOCHS = 6


def springs(count):
    """Mass, stiffness, stretch, speed -> total energy."""
    mass = np.random.uniform(0.5, 2.0, count)
    stiffness = np.random.uniform(1.0, 5.0, count)
    stretch = np.random.uniform(-1.0, 1.0, count)
    speed = np.random.uniform(-2.0, 2.0, count)
    energy = 0.5 * stiffness * stretch**2 + 0.5 * mass * speed**2
    x = np.stack([mass, stiffness, stretch, speed], axis=1).astype(np.float32)
    return x, energy.astype(np.float32)[:, None]


class SpringModel(keras.Model):
    def __init__(self, width=96):
        super().__init__()
        self.norm = layers.Normalization()
        self.hidden1 = layers.Dense(width, activation="swish")
        self.bn = layers.BatchNormalization(momentum=0.9)
        self.hidden2 = layers.Dense(width, activation="swish")
        self.dropout = layers.Dropout(0.05)
        self.out = layers.Dense(1)

    def call(self, x, training=None):
        x = self.hidden1(self.norm(x))
        x = self.bn(x, training=training)
        x = self.hidden2(x)
        x = self.dropout(x, training=training)
        return self.out(x)


class EpochPrinter(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}: " + " ".join(f"{k}={v:.4f}" for k, v in (logs or {}).items()))


x, y = springs(SAMPLES)
x_train, x_val = x[:5000], x[5000:]
y_train, y_val = y[:5000], y[5000:]

train = tf.data.Dataset.from_tensor_slices((x_train, y_train))
train = train.shuffle(5000).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)
val = tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(BATCH_SIZE)

model = SpringModel()
model.norm.adapt(x_train)
optimizer = keras.optimizers.Adam(learning_rate=2e-3)
model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
model.fit(train, validation_data=val, epochs=EPOCHS, callbacks=[EpochPrinter()], verbose=0)

baseline = np.abs(y_val - y_train.mean()).mean()
mse, mae = model.evaluate(val, verbose=0)
print(f"mae {mae:.3f}, always the mean would give {baseline:.3f}")
model.save_weights("spring_weights")
