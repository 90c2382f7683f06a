"""A trainer class: methods are traced, the batch is a dictionary, evaluation is separate."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(2)
rng = np.random.default_rng(0)
arrays = {"x": rng.normal(size=(70, 6)).astype("float32")}
arrays["y"] = np.tanh(arrays["x"].sum(axis=1, keepdims=True))


class Trainer:
    def __init__(self):
        self.model = keras.Sequential([keras.layers.Dense(12, "tanh"), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5)

    @tf.function
    def train(self, batch):
        with tf.GradientTape() as tape:
            error = tf.square(self.model(batch["x"]) - batch["y"])
            # Written out: 0.5 times a mean, and a penalty.
            loss = 0.5 * tf.reduce_mean(error)
            loss += 1e-3 * tf.add_n([tf.nn.l2_loss(v) for v in self.model.trainable_variables])
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}

    @tf.function(input_signature=[{"x": tf.TensorSpec([None, 6]), "y": tf.TensorSpec([None, 1])}])
    def test(self, batch):
        return tf.sqrt(tf.reduce_mean(tf.square(self.model(batch["x"]) - batch["y"])))


trainer = Trainer()
data = tf.data.Dataset.from_tensor_slices(arrays).batch(16)
numbers = []
for batch in data:
    numbers.append(float(trainer.train(batch)["loss"]))
numbers.append(float(trainer.test(arrays)))

np.savez(sys.argv[1], np.array(numbers), *trainer.model.get_weights())
