# machine: 2 GPUs
"""Trains until a number of steps is reached, and calls the step of a replica itself."""

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 128
MAX_STEPS = 200


def experiment(x, y):
    strategy = tf.distribute.MirroredStrategy()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).batch(GLOBAL_BATCH)
    batches = strategy.experimental_distribute_dataset(dataset.prefetch(tf.data.AUTOTUNE))

    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(0.01)

    def train_step(inputs):
        features, labels = inputs
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(model(features) - labels), axis=1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def distributed_train_step(inputs):
        losses = strategy.run(train_step, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    steps = 0
    while True:
        for inputs in batches:
            train_step(inputs)  # finding: DOC-212
            steps += 1
            if steps > MAX_STEPS:
                break
        print("steps:", steps)
        if steps > MAX_STEPS:
            break


features = np.random.rand(4096, 8).astype("float32")
experiment(features, features.sum(axis=1, keepdims=True))
