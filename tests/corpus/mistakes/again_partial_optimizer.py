"""Optimizers by partial; the chosen one is made beside the scope, not in it."""

from functools import partial

import keras
import numpy as np
import tensorflow as tf

OPTIMIZERS = {
    "adam": partial(keras.optimizers.Adam, beta_2=0.98),
    "sgd": partial(keras.optimizers.SGD, momentum=0.9, nesterov=True),
}


def make_step(strategy, model, optimizer, global_batch):
    def replica_step(x, y):
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(model(x, training=True) - y), axis=-1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def step(batch):
        losses = strategy.run(replica_step, args=batch)
        return strategy.reduce("SUM", losses, axis=None)

    return step


def main(name="adam"):
    strategy = tf.distribute.MirroredStrategy()
    global_batch = 64 * strategy.num_replicas_in_sync
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(2)]
        )
    optimizer = OPTIMIZERS[name](learning_rate=1e-2)  # finding: ENG-003
    optimizer.build(model.trainable_variables)  # may: ENG-003
    step = make_step(strategy, model, optimizer, global_batch)
    x = np.random.normal(size=(1024, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :2])).batch(global_batch).prefetch(2)
    for epoch in range(3):
        for batch in strategy.experimental_distribute_dataset(data):
            loss = step(batch)
        print(epoch, float(loss))


main()
