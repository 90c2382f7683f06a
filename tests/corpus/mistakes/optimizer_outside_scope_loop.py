# machine: 2 GPUs
"""Model in the scope, optimizer at the top of the file with the other constants."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

EPOCHS = 2
GLOBAL_BATCH_SIZE = 128
OPTIMIZER = keras.optimizers.Adam(learning_rate=0.002)  # finding: ENG-003  # may: DOC-305

strategy = tf.distribute.MirroredStrategy()

with strategy.scope():
    model = keras.Sequential(
        [keras.Input((14,)), keras.layers.Dense(28, "elu"), keras.layers.Dense(2)]
    )
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

x = np.random.normal(size=(512, 14)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512).batch(GLOBAL_BATCH_SIZE)
dist_dataset = strategy.experimental_distribute_dataset(dataset.prefetch(tf.data.AUTOTUNE))


def step_fn(inputs):
    features, labels = inputs
    with tf.GradientTape() as tape:
        per_example_loss = loss_object(labels, model(features, training=True))
        loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE)
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients = zip(gradients, model.trainable_variables)
    OPTIMIZER.apply_gradients(gradients)  # may: DOC-305
    return loss


@tf.function
def distributed_step(inputs):
    per_replica = strategy.run(step_fn, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)


for epoch in range(EPOCHS):
    for inputs in dist_dataset:
        loss = distributed_step(inputs)
    print(f"epoch {epoch}: loss {loss.numpy():.4f}")
