"""A thread reads the data ahead and puts NumPy batches into a queue."""

import queue
import threading

import keras
import numpy as np
import tensorflow as tf

STOP = object()


class Ahead(threading.Thread):
    def __init__(self, num_batches, batch, depth=8):
        super().__init__(daemon=True)
        self.num_batches, self.batch = num_batches, batch
        self.queue = queue.Queue(maxsize=depth)

    def run(self):
        rng = np.random.default_rng(0)
        for _ in range(self.num_batches):
            x = rng.normal(size=(self.batch, 16)).astype("float32")
            self.queue.put((x, x[:, :1] * 2))
        self.queue.put(STOP)

    def __iter__(self):
        while (item := self.queue.get()) is not STOP:
            yield item


strategy = tf.distribute.MirroredStrategy()
GLOBAL = 128 * strategy.num_replicas_in_sync
with strategy.scope():
    net = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
    )
    opt = keras.optimizers.SGD(1e-2)
    opt.build(net.trainable_variables)


def replica_fn(x, y):
    with tf.GradientTape() as tape:
        each = tf.reduce_sum((net(x) - y) ** 2, axis=1)
        loss = tf.nn.compute_average_loss(each, global_batch_size=GLOBAL)
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    return loss


@tf.function
def dist_step(x, y):
    return strategy.reduce(  # finding: ENG-060
        "SUM", strategy.run(replica_fn, args=(x, y)), axis=None
    )


loader = Ahead(40, GLOBAL)
loader.start()
for i, (x, y) in enumerate(loader):
    loss = dist_step(tf.constant(x), tf.constant(y))  # may: ENG-060
    if i % 20 == 0:
        print(i, float(loss))
