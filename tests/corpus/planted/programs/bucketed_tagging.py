"""Part-of-speech-like tagging of sentences of different lengths, in three buckets of lengths."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(55)
VOCAB, TAGS, BATCH, EPOCHS = 60, 4, 32, 3
BOUNDARIES = [9, 17]


def sentences(n, seed):
    """The tag of a word depends on itself and on the word before."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        words = rng.integers(1, VOCAB, rng.integers(3, 25))
        before = np.concatenate([[0], words[:-1]])
        yield words.astype("int32"), ((words % 2) * 2 + before % 2).astype("int32")


def load(n, seed):
    words, tags = zip(*sentences(n, seed))
    ragged = tf.ragged.constant(words), tf.ragged.constant(tags)
    ds = tf.data.Dataset.from_tensor_slices(ragged)
    return ds.map(lambda w, t: (w, t), num_parallel_calls=tf.data.AUTOTUNE)


def bucketed(ds):
    # padded to the border of the bucket: three shapes in all, so three traces
    return ds.bucket_by_sequence_length(
        lambda words, tags: tf.shape(words)[0],
        bucket_boundaries=[*BOUNDARIES, 25],
        bucket_batch_sizes=[BATCH] * 4,
        pad_to_bucket_boundary=True,
        drop_remainder=True,
    ).prefetch(tf.data.AUTOTUNE)


train_ds = bucketed(load(1600, 0).cache().shuffle(1600))
valid_ds = bucketed(load(320, 1))

words = keras.Input((None,), dtype="int32")
x = layers.Embedding(VOCAB, 32, mask_zero=True)(words)
x = layers.Bidirectional(layers.GRU(32, return_sequences=True))(x)
tagger = keras.Model(words, layers.Dense(TAGS)(x))
optimizer = keras.optimizers.Adam(5e-3)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(words, tags):
    weights = tf.cast(words != 0, tf.float32)
    with tf.GradientTape() as tape:
        losses = loss_fn(tags, tagger(words, training=True))
        loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)
    variables = tagger.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


@tf.function
def valid_step(words, tags):
    accuracy.update_state(tags, tagger(words, training=False), sample_weight=words != 0)


for epoch in range(EPOCHS):
    mean = keras.metrics.Mean()
    for batch in train_ds:
        mean.update_state(train_step(*batch))
    accuracy.reset_state()
    for batch in valid_ds:
        valid_step(*batch)
    print(
        f"epoch {epoch}: loss {float(mean.result()):.3f} tags right {float(accuracy.result()):.3f}"
    )
