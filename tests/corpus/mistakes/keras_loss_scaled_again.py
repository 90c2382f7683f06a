# machine: 4 GPUs
"""A Keras loss divides by the replicas by itself; here it is done by hand as well."""

import keras
import numpy as np
import tensorflow as tf


def main():
    strategy = tf.distribute.MirroredStrategy()
    global_batch = 32 * strategy.num_replicas_in_sync
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((10,)), keras.layers.Dense(20, "relu"), keras.layers.Dense(1)]
        )
        loss_fn = keras.losses.MeanSquaredError()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
            scaled_loss = loss / strategy.num_replicas_in_sync  # finding: DOC-304
        gradients = tape.gradient(scaled_loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return scaled_loss

    @tf.function
    def train_step(x, y):
        losses = strategy.run(replica_step, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    x = np.random.normal(size=(1024, 10)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(global_batch).prefetch(2)
    for epoch in range(2):
        for x, y in strategy.experimental_distribute_dataset(data):
            loss = train_step(x, y)
        print("epoch", epoch, "loss", float(loss))


if __name__ == "__main__":
    main()
