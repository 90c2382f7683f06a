"""Character-level language model, trained in a loop, then it writes a few lines."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(2)
np.random.seed(2)

SEQ = 40
BATCH = 64
STEPS_PER_EPOCH = 40
EPOCHS = 4
UNITS = 96

SUBJECTS = ["the cat", "a dog", "my friend", "the old man", "her sister"]
VERBS = ["sees", "likes", "follows", "hears", "paints"]
OBJECTS = ["the moon", "a red house", "the sea", "an apple", "two birds"]


def write_corpus(sentences):
    lines = []
    for _ in range(sentences):
        lines.append(
            f"{np.random.choice(SUBJECTS)} {np.random.choice(VERBS)} {np.random.choice(OBJECTS)}.\n"
        )
    return "".join(lines)


text = write_corpus(3000)
vocab = sorted(set(text))
char2idx = {c: i for i, c in enumerate(vocab)}
ids = np.array([char2idx[c] for c in text], dtype=np.int32)
cut = int(0.9 * len(ids))
print(f"{len(text)} characters, {len(vocab)} different")


def split_input_target(chunk):
    return chunk[:, :-1], chunk[:, 1:]


def sequences(array, training):
    ds = tf.data.Dataset.from_tensor_slices(array).batch(SEQ + 1, drop_remainder=True)
    if training:
        ds = ds.cache().shuffle(5000).repeat()
    ds = ds.batch(BATCH, drop_remainder=True)
    return ds.map(split_input_target, num_parallel_calls=tf.data.AUTOTUNE).prefetch(
        tf.data.AUTOTUNE
    )


train_ds = sequences(ids[:cut], True)
valid_ds = sequences(ids[cut:], False)

inputs = tf.keras.Input((None,), dtype="int32")
h = tf.keras.layers.Embedding(len(vocab), 32)(inputs)
h = tf.keras.layers.GRU(UNITS, return_sequences=True)(h)
logits = tf.keras.layers.Dense(len(vocab))(h)
model = tf.keras.Model(inputs, logits)
optimizer = tf.keras.optimizers.Adam(4e-3)


def loss_of(targets, logits):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    return tf.reduce_mean(losses)


@tf.function
def train_step(inputs, targets):
    with tf.GradientTape() as tape:
        loss = loss_of(targets, model(inputs, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    grads = [tf.clip_by_norm(g, 5.0) for g in grads]
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


@tf.function
def valid_step(inputs, targets):
    return loss_of(targets, model(inputs, training=False))


batches = iter(train_ds)
for epoch in range(EPOCHS):
    losses = tf.keras.metrics.Mean()
    for _ in range(STEPS_PER_EPOCH):
        inputs, targets = next(batches)
        losses.update_state(train_step(inputs, targets))
    valid = np.mean([valid_step(i, t) for i, t in valid_ds])
    print(f"epoch {epoch}: {losses.result():.3f} nats, validation {valid:.3f}")


def write(start, length=80):
    out = [char2idx[c] for c in start]
    for _ in range(length):
        window = np.full((1, SEQ), out[0], np.int32)
        window[0, -len(out[-SEQ:]) :] = out[-SEQ:]
        next_logits = predict_last(tf.constant(window))
        out.append(int(tf.random.categorical(next_logits[None] / 0.5, 1)[0, 0]))
    return "".join(vocab[i] for i in out)


@tf.function
def predict_last(window):
    return model(window, training=False)[0, -1]


print(write("the "))
