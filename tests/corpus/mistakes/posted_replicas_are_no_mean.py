# machine: 2 GPUs
"""Tags sequences; the loss of each token is divided by the number of replicas, and not averaged."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

strategy = tf.distribute.MirroredStrategy()
GLOBAL_BATCH = 64

tokens = np.random.randint(0, 50, size=(1024, 20))
dataset = tf.data.Dataset.from_tensor_slices((tokens, tokens)).batch(GLOBAL_BATCH).prefetch(2)
batches = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    tagger = keras.Sequential(
        [keras.Input((20,)), keras.layers.Embedding(50, 64), keras.layers.Dense(50)]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(tagger.trainable_variables)


@tf.function
def train_step(inputs, labels):
    def update(x, y):
        with tf.GradientTape() as tape:
            per_token = keras.losses.sparse_categorical_crossentropy(y, tagger(x), from_logits=True)
            loss = per_token / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, tagger.trainable_variables)  # finding: DOC-311
        optimizer.apply_gradients(zip(gradients, tagger.trainable_variables))
        return tf.reduce_mean(per_token)

    losses = strategy.run(update, args=(inputs, labels))
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)


for epoch in range(2):
    for inputs, labels in batches:
        mean_loss = train_step(inputs, labels)
    print(epoch, float(mean_loss))
