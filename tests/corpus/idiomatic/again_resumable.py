# machine: 2 GPUs
"""Generators and a checkpoint of all that a run needs to go on: also where it was."""

import itertools

import keras
import numpy as np
import tensorflow as tf


def forever(strategy, dataset):
    while True:
        yield from strategy.experimental_distribute_dataset(dataset)


class State(tf.train.Checkpoint):
    def __init__(self, **kwargs):
        super().__init__(step=tf.Variable(0, dtype=tf.int64, trainable=False), **kwargs)


def main(folder="/tmp/again_resumable", total=100, save_every=50):
    strategy = tf.distribute.MirroredStrategy()
    batch = 32 * strategy.num_replicas_in_sync
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
        )
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        state = State(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(state, folder, max_to_keep=3)
    state.restore(manager.latest_checkpoint)

    def replica(x, y):
        with tf.GradientTape() as tape:
            each = keras.losses.mean_squared_error(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(each, global_batch_size=batch)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    @tf.function
    def train_step(x, y):
        return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)

    x = np.random.normal(size=(1024, 6)).astype("float32")
    dataset = (
        tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(1024).batch(batch).prefetch(2)
    )
    begun = int(state.step.numpy())
    for number, inputs in enumerate(
        itertools.islice(forever(strategy, dataset), total - begun), begun + 1
    ):
        loss = train_step(*inputs)
        if number % save_every == 0:
            state.step.assign(number)
            print("step", number, "loss", float(loss), "saved as", manager.save())


if __name__ == "__main__":
    main()
