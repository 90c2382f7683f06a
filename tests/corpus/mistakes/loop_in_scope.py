# machine: 2 GPUs
"""To be safe, the whole program is put into the scope."""

import numpy as np
import tensorflow as tf


def main():
    strategy = tf.distribute.MirroredStrategy()
    global_batch = 64 * strategy.num_replicas_in_sync

    with strategy.scope():  # finding: DOC-203
        x = np.random.normal(size=(512, 7)).astype("float32")
        y = np.abs(x[:, :1])
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(global_batch).prefetch(2)
        dataset = strategy.experimental_distribute_dataset(dataset)

        model = tf.keras.Sequential(
            [tf.keras.Input((7,)), tf.keras.layers.Dense(14, "relu"), tf.keras.layers.Dense(1)]
        )
        optimizer = tf.keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)

        def replica_step(features, targets):
            with tf.GradientTape() as tape:
                errors = tf.squeeze(tf.abs(model(features) - targets), 1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=global_batch)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        @tf.function
        def train_step(features, targets):
            losses = strategy.run(replica_step, args=(features, targets))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        for epoch in range(3):  # may: DOC-203
            for features, targets in dataset:
                loss = train_step(features, targets)
            print("epoch", epoch, "loss", float(loss))


if __name__ == "__main__":
    main()
