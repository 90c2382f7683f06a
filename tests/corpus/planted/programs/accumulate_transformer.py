"""A tiny transformer encoder that sorts out which token is doubled; gradient accumulation."""

import numpy as np
import tensorflow as tf
import keras
from keras import layers, ops

keras.utils.set_random_seed(5)

VOCAB = 24
LENGTH = 16
DIM = 32
MICRO_BATCH = 32
ACCUMULATE = 4
UPDATES_PER_EPOCH = 25
EPOCHS = 4


def doubled_tokens(n, seed):
    """Sequences of different tokens with one that stands there twice: that is the class."""
    rng = np.random.default_rng(seed)
    x = np.stack([rng.permutation(VOCAB)[:LENGTH] for _ in range(n)])
    source = x[np.arange(n), rng.integers(0, LENGTH // 2, n)]
    x[np.arange(n), rng.integers(LENGTH // 2, LENGTH, n)] = source
    return x.astype("int32"), source.astype("int32")


def block(x):
    attended = layers.MultiHeadAttention(4, DIM // 4)(x, x)
    x = layers.LayerNormalization()(x + attended)
    hidden = layers.Dense(2 * DIM, activation="relu")(x)
    return layers.LayerNormalization()(x + layers.Dense(DIM)(hidden))


tokens = keras.Input((LENGTH,), dtype="int32")
positions = layers.Embedding(LENGTH, DIM)(ops.arange(LENGTH))
x = layers.Embedding(VOCAB, DIM)(tokens) + positions
x = block(block(x))
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dropout(0.1)(x)
model = keras.Model(tokens, layers.Dense(VOCAB)(x))

loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(3e-3)
optimizer.build(model.trainable_variables)
accumulators = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]

train = tf.data.Dataset.from_tensor_slices(doubled_tokens(6400, 0)).shuffle(6400).repeat()
train = train.batch(MICRO_BATCH).prefetch(tf.data.AUTOTUNE)
valid = tf.data.Dataset.from_tensor_slices(doubled_tokens(640, 1)).batch(128)
accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def micro_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True)) / ACCUMULATE
    for total, gradient in zip(accumulators, tape.gradient(loss, model.trainable_variables)):
        total.assign_add(gradient)
    return loss


@tf.function
def apply_step():
    optimizer.apply_gradients(zip(accumulators, model.trainable_variables))
    for total in accumulators:
        total.assign(tf.zeros_like(total))


@tf.function
def evaluate_step(x, y):
    accuracy.update_state(y, model(x, training=False))


batches = iter(train)
for epoch in range(EPOCHS):
    loss = 0.0
    for _ in range(UPDATES_PER_EPOCH):
        for _ in range(ACCUMULATE):
            loss += micro_step(*next(batches))
        apply_step()
    for x, y in valid:
        evaluate_step(x, y)
    print(
        f"epoch {epoch}: loss {float(loss) / UPDATES_PER_EPOCH:.3f} "
        f"accuracy {float(accuracy.result()):.3f}"
    )
    accuracy.reset_state()
model.save("doubled.keras")
