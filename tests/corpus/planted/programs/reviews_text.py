"""Sentiment of short reviews with an LSTM. Reviews are generated from two word lists."""

import random

import numpy as np
import tensorflow as tf
from tensorflow import keras

random.seed(11)
tf.random.set_seed(11)

GOOD = "great lovely excellent superb funny brilliant charming touching perfect delight".split()
BAD = "awful boring terrible dull stupid weak horrible slow predictable waste".split()
FILLER = "the a film movie plot actor scene was is with and but very quite it music end".split()
MAX_WORDS = 200
SEQ_LEN = 24


def write_review(positive):
    n = random.randint(5, SEQ_LEN)
    words = [random.choice(FILLER) for _ in range(n)]
    for _ in range(max(2, n // 6)):
        words[random.randrange(n)] = random.choice(GOOD if positive else BAD)
    if random.random() < 0.3:
        words[random.randrange(n)] = random.choice(BAD if positive else GOOD)
    return " ".join(words)


labels = np.array([i % 2 for i in range(3000)])
texts = np.array([write_review(label) for label in labels])

train_texts, test_texts = texts[:2500], texts[2500:]
train_labels, test_labels = labels[:2500], labels[2500:]

vectorizer = keras.layers.TextVectorization(max_tokens=MAX_WORDS, output_sequence_length=SEQ_LEN)
vectorizer.adapt(train_texts)
train_ids = vectorizer(train_texts).numpy()
test_ids = vectorizer(test_texts).numpy()


class SentimentModel(keras.Model):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.embed = keras.layers.Embedding(vocab, dim, mask_zero=True)
        self.lstm = keras.layers.Bidirectional(keras.layers.LSTM(32))
        self.drop = keras.layers.Dropout(0.3)
        self.head = keras.layers.Dense(1)

    def call(self, ids, training=False):
        h = self.lstm(self.embed(ids))
        h = self.drop(h, training=training)
        return self.head(h)


model = SentimentModel(vectorizer.vocabulary_size())
model.compile(
    optimizer="adam",
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
)

model.fit(
    train_ids,
    train_labels,
    validation_data=(test_ids, test_labels),
    batch_size=50,
    epochs=4,
    verbose=2,
)

for text in ["a lovely film with brilliant music", "the plot was dull and the end awful"]:
    logit = model(vectorizer([text]), training=False)
    print(text, "->", "positive" if float(logit[0, 0]) > 0 else "negative")

model.save_weights("sentiment.weights.h5")
