"""keras.Model with its own train_step under a strategy: regression of two robot joint angles."""

import numpy as np
import tensorflow as tf
import keras
from keras import layers

cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    cpus[0], [tf.config.LogicalDeviceConfiguration(), tf.config.LogicalDeviceConfiguration()]
)
strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
REPLICAS = strategy.num_replicas_in_sync
GLOBAL_BATCH = 64 * REPLICAS
EPOCHS = 5


def arm(n, seed):
    """End point and camera features of an arm with two joints -> the two angles."""
    rng = np.random.default_rng(seed)
    angles = rng.uniform(0.1, 1.4, (n, 2))
    x = np.cos(angles[:, 0]) + np.cos(angles.sum(1))
    y = np.sin(angles[:, 0]) + np.sin(angles.sum(1))
    camera = np.stack([x * y, x**2, y**2, np.hypot(x, y)], axis=1)
    features = np.concatenate([x[:, None], y[:, None], camera], axis=1)
    return features.astype("float32"), angles.astype("float32")


class ArmModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.body = [layers.Dense(192, activation="relu") for _ in range(3)]
        self.head = layers.Dense(2)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae]

    def call(self, x, training=False):
        for layer in self.body:
            x = layer(x)
        return self.head(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            prediction = self(x, training=True)
            errors = tf.reduce_mean(tf.square(y - prediction), axis=1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.loss_tracker.update_state(errors)
        self.mae.update_state(y, prediction)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        x, y = data
        prediction = self(x, training=False)
        self.loss_tracker.update_state(tf.reduce_mean(tf.square(y - prediction), axis=1))
        self.mae.update_state(y, prediction)
        return {m.name: m.result() for m in self.metrics}


keras.utils.set_random_seed(0)
train = tf.data.Dataset.from_tensor_slices(arm(6400, 0)).shuffle(6400)
train = train.batch(GLOBAL_BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
valid = (
    tf.data.Dataset.from_tensor_slices(arm(1280, 1)).batch(GLOBAL_BATCH).prefetch(tf.data.AUTOTUNE)
)

with strategy.scope():
    model = ArmModel()
    model(np.zeros((1, 6), "float32"))
    model.compile(optimizer=keras.optimizers.Adam(3e-3))

model.fit(train, validation_data=valid, epochs=EPOCHS, verbose=2)
print("validation:", model.evaluate(valid, verbose=0, return_dict=True))
