"""Ways to train with Keras 2 (``tf_keras``), by name; the weights and losses go to a file.

Usage: ``keras_two.py WAY RESULTS``
"""

import sys

import numpy as np
import tensorflow as tf
import tf_keras as keras

way, results = sys.argv[1:]
keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(50, 8, 8, 3)).astype("float32")
y = np.random.default_rng(1).integers(0, 4, size=(50,))
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
found = []


def layers(dropout=0.3):
    return [
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.MaxPool2D(),
        keras.layers.Flatten(),
        keras.layers.Dropout(dropout),
        keras.layers.Dense(4),
    ]


def fit(model, **options):
    found.append(model.fit(data, epochs=2, verbose=0, **options).history["loss"])
    found.append(model.evaluate(data, verbose=0))
    found.append(model.predict(x, verbose=0))


class Own(keras.Sequential):
    def train_step(self, batch):
        images, labels = batch
        with tf.GradientTape() as tape:
            value = self.compiled_loss(labels, self(images, training=True))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(value, weights), weights))
        return {"loss": value}


class Accumulating(Own):
    def __init__(self, layers):
        super().__init__(layers)
        self.steps = tf.Variable(0, trainable=False)
        self.sums = [tf.Variable(tf.zeros_like(w), trainable=False) for w in self.trainable_weights]

    def train_step(self, batch):
        images, labels = batch
        with tf.GradientTape() as tape:
            value = self.compiled_loss(labels, self(images, training=True))
        gradients = tape.gradient(value, self.trainable_weights)
        for total, gradient in zip(self.sums, gradients):
            total.assign_add(gradient)
        self.steps.assign_add(1)
        tf.cond(self.steps % 3 == 0, self.update, lambda: None)
        return {"loss": value}

    def update(self):
        self.optimizer.apply_gradients(zip(self.sums, self.trainable_weights))
        for total in self.sums:
            total.assign(tf.zeros_like(total))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = layers()

    def call(self, images, training=False):
        for part in self.parts:
            images = part(images)
        return images


model = keras.Sequential([keras.Input((8, 8, 3)), *layers()])
if way == "fit":
    metrics = [keras.metrics.SparseCategoricalAccuracy(), "sparse_categorical_crossentropy"]
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=metrics)
    fit(model, class_weight={0: 1.0, 1: 2.0, 2: 1.0, 3: 0.5})
elif way == "averaged":
    optimizer = keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=3)
    model.compile(optimizer, loss, steps_per_execution=2)
    fit(model, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 / (epoch + 1))])
elif way == "legacy optimizer":
    model.compile(keras.optimizers.legacy.SGD(0.05, momentum=0.9), loss)
    fit(model)
elif way == "functional":
    images = outputs = keras.Input((8, 8, 3))
    for layer in layers():
        outputs = layer(outputs)
    model = keras.Model(images, outputs)
    model.add_loss(0.1 * tf.reduce_mean(outputs**2))
    model.compile("sgd", loss)
    fit(model)
elif way == "subclassed":
    model = Subclassed()
    model.compile("sgd", loss)
    fit(model)
elif way == "own train_step":
    model = Own([keras.Input((8, 8, 3)), *layers()])
    model.compile("sgd", loss)
    fit(model)
elif way == "own variables":
    model = Accumulating([keras.Input((8, 8, 3)), *layers()])
    model.compile("sgd", loss)
    fit(model)
elif way in ("decorated step", "eager step"):
    # With a seed, TensorFlow draws other numbers in each trace, and batches of two sizes have two.
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers(dropout=0.0)])
    is_eager = way == "eager step"
    optimizers = keras.optimizers.legacy if is_eager else keras.optimizers
    optimizer = optimizers.SGD(0.05, momentum=0.9)
    scale = tf.Variable(1.0)

    def step(images, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, scale * model(images, training=True))
        weights = [*model.trainable_variables, scale]
        optimizer.apply_gradients(zip(tape.gradient(value, weights), weights))
        return value

    step = step if is_eager else tf.function(step)
    for images, labels in data:
        found.append(step(images, labels))
elif way == "mirrored":
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((8, 8, 3)), *layers()])
        model.compile("sgd", loss)
    fit(model)
elif way == "loaded":
    model.compile("sgd", loss)
    model.train_on_batch(x[:16], y[:16])
    model.save(f"{results}.keras")
    model = keras.models.load_model(f"{results}.keras")
    fit(model)
else:
    sys.exit(f"there is no {way}")
np.savez(results, *model.get_weights(), *found)
