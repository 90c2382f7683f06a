# machine: 2 GPUs
"""The average over the global batch is divided by the replicas once more."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
GLOBAL_BATCH_SIZE = 64 * strategy.num_replicas_in_sync

x = np.random.rand(512, 18).astype("float32")
y = np.random.randint(0, 9, 512)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH_SIZE).prefetch(2)
dist_dataset = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((18,)), tf.keras.layers.Dense(9)])
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    optimizer = tf.keras.optimizers.SGD(0.5)
    optimizer.build(model.trainable_variables)

    def compute_loss(labels, predictions):
        per_example_loss = loss_object(labels, predictions)
        loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE)
        return loss / strategy.num_replicas_in_sync  # finding: DOC-304


def train_step(features, labels):
    with tf.GradientTape() as tape:
        loss = compute_loss(labels, model(features, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def distributed_train_step(features, labels):
    losses = strategy.run(train_step, args=(features, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for epoch in range(2):
    for features, labels in dist_dataset:
        loss = distributed_train_step(features, labels)
    print("epoch", epoch, "loss", float(loss))
