"""As many copies as GPUs, each with its share of the data: the copies never meet."""

import keras
import numpy as np
import tensorflow as tf

GPUS = tf.config.list_logical_devices("GPU")


class Member:
    """One model on one device."""

    def __init__(self, device):
        self.device = device
        with tf.device(device):
            self.model = keras.Sequential(  # may: DOC-207
                [keras.Input((8,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
            )
            self.optimizer = keras.optimizers.Adam(1e-3)

    @tf.function
    def step(self, x, y):
        with tf.device(self.device):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.model(x) - y))
            grads = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(grads, self.model.trainable_variables))
        return loss


def shards(x, y, num, index, batch=128):
    data = tf.data.Dataset.from_tensor_slices((x, y)).shard(num, index)
    return data.batch(batch).prefetch(2)


members = {gpu.name: Member(gpu.name) for gpu in GPUS}  # finding: DOC-207
x = np.random.normal(size=(2048, 8)).astype("float32")
y = x[:, :1]
loaders = [shards(x, y, len(GPUS), i) for i in range(len(GPUS))]
for epoch in range(2):
    for parts in zip(*loaders):
        losses = [  # may: DOC-207
            member.step(*part) for member, part in zip(members.values(), parts)
        ]
    print(epoch, [float(loss) for loss in losses])
first = next(iter(members.values()))
first.model.save("copy.keras")
