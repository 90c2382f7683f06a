"""A custom loop from a tutorial of TensorFlow 2.0: strategy.run had another name then."""

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 64

strategy = tf.distribute.MirroredStrategy()
images = np.random.rand(512, 12).astype("float32")
labels = np.random.randint(0, 3, size=512)
dataset = tf.data.Dataset.from_tensor_slices((images, labels))
dataset = dataset.shuffle(512).batch(GLOBAL_BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
dist_dataset = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((12,)), tf.keras.layers.Dense(3)])
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)


def train_step(inputs):
    x, y = inputs
    with tf.GradientTape() as tape:
        per_sample = loss_object(y, model(x, training=True))
        loss = tf.nn.compute_average_loss(per_sample, global_batch_size=GLOBAL_BATCH)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def distributed_train_step(inputs):
    losses = strategy.experimental_run_v2(train_step, args=(inputs,))  # finding: DOC-004
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for epoch in range(2):
    total = tf.zeros(())
    for batch in dist_dataset:
        total += distributed_train_step(batch)
    print(epoch, float(total))
