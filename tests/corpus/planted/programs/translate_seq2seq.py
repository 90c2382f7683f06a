"""Toy translation: English number words -> digits. GRU encoder/decoder, teacher forcing."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

tf.random.set_seed(5)
gen = np.random.default_rng(5)

WORDS = ["<pad>", "<s>", "</s>"] + "zero one two three four five six seven eight nine".split()
SRC = {w: i for i, w in enumerate(WORDS)}
PAD, BOS, EOS = 0, 1, 2
TGT_VOCAB = 13
MAX_LEN = 9
BATCH = 64
EPOCHS = 8


def make_pairs(n):
    """The 'translation' is the sentence backwards, in digits."""
    src = np.zeros((n, MAX_LEN), np.int32)
    tgt = np.zeros((n, MAX_LEN + 2), np.int32)
    for i in range(n):
        k = gen.integers(3, MAX_LEN + 1)
        s = gen.integers(3, 13, k)
        src[i, :k] = s
        tgt[i, 0], tgt[i, 1 : k + 1], tgt[i, k + 1] = BOS, s[::-1], EOS
    return src, tgt


train_ds = tf.data.Dataset.from_tensor_slices(make_pairs(3200)).shuffle(3200)
train_ds = train_ds.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
test_ds = tf.data.Dataset.from_tensor_slices(make_pairs(320)).batch(BATCH)


class Encoder(tf.keras.Model):
    def __init__(self, units):
        super().__init__()
        self.embedding = layers.Embedding(len(SRC), 32, mask_zero=True)
        self.gru = layers.GRU(units, return_sequences=True, return_state=True)

    def call(self, tokens):
        return self.gru(self.embedding(tokens))


class Decoder(tf.keras.Model):
    def __init__(self, units):
        super().__init__()
        self.embedding = layers.Embedding(TGT_VOCAB, 32)
        self.gru = layers.GRU(units, return_sequences=True)
        self.attention = layers.Attention()
        self.fc = layers.Dense(TGT_VOCAB)

    def call(self, tokens, encoded, state, source_mask):
        h = self.gru(self.embedding(tokens), initial_state=state)
        context = self.attention([h, encoded], mask=[None, source_mask])
        return self.fc(tf.concat([h, context], axis=-1))


encoder, decoder = Encoder(64), Decoder(64)
optimizer = tf.keras.optimizers.Adam(5e-3)
cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def loss_function(real, pred):
    mask = tf.cast(real != PAD, tf.float32)
    loss = cross_entropy(real, pred) * mask
    return tf.reduce_sum(loss) / tf.reduce_sum(mask)


def forward(src, tgt_in):
    encoded, state = encoder(src)
    return decoder(tgt_in, encoded, state, src != PAD)


@tf.function
def train_step(src, tgt):
    with tf.GradientTape() as tape:
        loss = loss_function(tgt[:, 1:], forward(src, tgt[:, :-1]))
    variables = encoder.trainable_variables + decoder.trainable_variables
    gradients = tape.gradient(loss, variables)
    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
    optimizer.apply_gradients(zip(gradients, variables))
    return loss


@tf.function
def token_accuracy(src, tgt):
    guess = tf.argmax(forward(src, tgt[:, :-1]), -1, output_type=tf.int32)
    mask = tf.cast(tgt[:, 1:] != PAD, tf.float32)
    return tf.reduce_sum(tf.cast(guess == tgt[:, 1:], tf.float32) * mask) / tf.reduce_sum(mask)


for epoch in range(EPOCHS):
    epoch_loss = tf.keras.metrics.Mean()
    for src, tgt in train_ds:
        epoch_loss.update_state(train_step(src, tgt))
    accuracy = np.mean([token_accuracy(src, tgt) for src, tgt in test_ds])
    print(f"Epoch {epoch + 1} loss {epoch_loss.result():.4f} test token accuracy {accuracy:.3f}")
