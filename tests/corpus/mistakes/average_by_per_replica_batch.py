# machine: 2 GPUs
"""compute_average_loss is given the samples of one replica instead of those of all."""

import numpy as np
import tensorflow as tf
from tensorflow import keras as K

BATCH_SIZE_PER_REPLICA = 32


class Classifier(K.Model):
    def __init__(self):
        super().__init__()
        self.conv = K.layers.Conv1D(8, 3, activation="relu")
        self.pool = K.layers.GlobalAveragePooling1D()
        self.out = K.layers.Dense(6)

    def call(self, x):
        return self.out(self.pool(self.conv(x)))


def main():
    strategy = tf.distribute.MirroredStrategy()
    global_batch = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync
    x = np.random.normal(size=(512, 30, 2)).astype("float32")
    y = np.random.randint(0, 6, 512)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512).batch(global_batch)
    dataset = strategy.experimental_distribute_dataset(dataset.prefetch(tf.data.AUTOTUNE))

    with strategy.scope():
        model = Classifier()
        model(tf.zeros([1, 30, 2]))
        optimizer = K.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
        loss_fn = K.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(signals, kinds):
        with tf.GradientTape() as tape:
            per_example = loss_fn(kinds, model(signals, training=True))
            loss = tf.nn.compute_average_loss(  # finding: DOC-206
                per_example, global_batch_size=BATCH_SIZE_PER_REPLICA
            )
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    @tf.function
    def train_step(signals, kinds):
        losses = strategy.run(replica_step, args=(signals, kinds))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    for epoch in range(2):
        for signals, kinds in dataset:
            loss = train_step(signals, kinds)
        print("epoch", epoch, "loss", float(loss))


if __name__ == "__main__":
    main()
