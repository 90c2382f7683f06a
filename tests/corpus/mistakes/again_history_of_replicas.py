"""What run gives back goes into a history and is formatted as a number."""

import collections

import keras
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
GLOBAL = 64 * strategy.num_replicas_in_sync


class History(collections.defaultdict):
    def __init__(self):
        super().__init__(list)

    def log(self, **values):
        for name, value in values.items():
            self[name].append(value)


with strategy.scope():
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)


def replica(x, y):
    with tf.GradientTape() as tape:
        each = tf.reduce_sum(tf.square(model(x, training=True) - y), -1)
        loss = tf.nn.compute_average_loss(each, global_batch_size=GLOBAL)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


@tf.function
def step(x, y):
    return strategy.run(replica, args=(x, y))


def train(epochs=2):
    history = History()
    x = np.random.normal(size=(1024, 5)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(GLOBAL).prefetch(2)
    for epoch in range(epochs):
        for x, y in strategy.experimental_distribute_dataset(data):
            loss = step(x, y)
        history.log(epoch=epoch, loss=loss)
        print(f"epoch {epoch}: loss {loss}")  # finding: RUN-010
    return history


train()
