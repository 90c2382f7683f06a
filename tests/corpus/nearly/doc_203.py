# machine: 2 GPUs
"""A loop in the scope makes the models; the training loop is outside."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
BATCH = 64 * strategy.num_replicas_in_sync

with strategy.scope():
    layers = [tf.keras.Input((4,))]
    for width in (16, 8, 1):
        layers.append(tf.keras.layers.Dense(width, activation="tanh"))
    model = tf.keras.Sequential(layers)
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            squares = tf.reduce_sum(tf.square(model(x) - x[:, :1]), axis=1)
            loss = tf.nn.compute_average_loss(squares, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss


@tf.function
def train(x):
    return strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)


data = tf.data.Dataset.from_tensor_slices(np.random.rand(512, 4).astype("float32"))
data = strategy.experimental_distribute_dataset(data.batch(BATCH).prefetch(1))
for epoch in range(2):
    for x in data:
        loss = train(x)
print("loss", float(loss))
