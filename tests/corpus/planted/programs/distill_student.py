"""Knowledge distillation: a small student learns from a bigger, trained teacher (train_step)."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(77)
CLASSES = 5
DIM = 40
BATCH = 64


def mixture(n, seed):
    centers = np.random.default_rng(0).normal(0, 1.0, (CLASSES * 3, DIM))
    rng = np.random.default_rng(seed)
    part = rng.integers(0, CLASSES * 3, n)
    x = centers[part] + rng.normal(0, 1.6, (n, DIM))
    return x.astype("float32"), (part % CLASSES).astype("int64")


def network(widths, name):
    stack = [keras.Input((DIM,))]
    for width in widths:
        stack += [layers.Dense(width, activation="relu"), layers.Dropout(0.2)]
    return keras.Sequential(stack + [layers.Dense(CLASSES)], name=name)


class Distiller(keras.Model):
    """Trains the student on labels and on the softened answers of the teacher."""

    def __init__(self, student, teacher, alpha=0.3, temperature=3.0):
        super().__init__()
        self.student = student
        self.teacher = teacher
        self.alpha = alpha
        self.temperature = temperature
        self.distill_tracker = keras.metrics.Mean(name="distill")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        self.label_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.distill_tracker, self.accuracy]

    def call(self, x, training=False):
        return self.student(x, training=training)

    def train_step(self, data):
        x, y = data
        teacher_logits = self.teacher(x, training=False)
        with tf.GradientTape() as tape:
            student_logits = self.student(x, training=True)
            hard = self.label_loss(y, student_logits)
            soft_targets = tf.nn.softmax(teacher_logits / self.temperature, axis=1)
            soft = tf.nn.softmax_cross_entropy_with_logits(
                soft_targets, student_logits / self.temperature
            )
            soft = tf.reduce_mean(soft) * self.temperature**2
            loss = self.alpha * hard + (1 - self.alpha) * soft
        weights = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.distill_tracker.update_state(loss)
        self.accuracy.update_state(y, student_logits)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        x, y = data
        logits = self.student(x, training=False)
        self.accuracy.update_state(y, logits)
        return {"accuracy": self.accuracy.result()}


x_train, y_train = mixture(6000, 1)
x_test, y_test = mixture(1500, 2)

teacher = network([256, 256], "teacher")
teacher.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
teacher.fit(
    x_train, y_train, batch_size=BATCH, epochs=4, validation_data=(x_test, y_test), verbose=2
)
teacher.trainable = False

distiller = Distiller(network([32], "student"), teacher)
distiller.compile(optimizer=keras.optimizers.Adam(3e-3))
distiller.fit(
    x_train, y_train, batch_size=BATCH, epochs=5, validation_data=(x_test, y_test), verbose=2
)
print("teacher:", teacher.evaluate(x_test, y_test, verbose=0)[1])
