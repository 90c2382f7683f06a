"""Matrix factorisation for film ratings. Eager prototype that became a tf.function loop."""

import collections

import numpy as np
import tensorflow as tf
from tensorflow import keras

USERS, FILMS, RATINGS = 600, 400, 40000
RANK = 16
BATCH = 512
EPOCHS = 8
Split = collections.namedtuple("Split", "users films stars")


def rate(seed):
    """Ratings of 1 to 5 stars from hidden tastes."""
    rng = np.random.default_rng(seed)
    taste = rng.normal(0, 1, (USERS, 5))
    style = rng.normal(0, 1, (FILMS, 5))
    users = rng.integers(0, USERS, RATINGS)
    films = rng.integers(0, FILMS, RATINGS)
    raw = 3 + 0.7 * (taste[users] * style[films]).sum(1) + rng.normal(0, 0.3, RATINGS)
    return users.astype("int32"), films.astype("int32"), np.clip(raw, 1, 5).astype("float32")


users, films, stars = rate(0)
cut = RATINGS * 9 // 10
train = Split(users[:cut], films[:cut], stars[:cut])
valid = Split(users[cut:], films[cut:], stars[cut:])
average = float(train.stars.mean())


class Recommender(keras.Model):
    def __init__(self):
        super().__init__()
        kwargs = dict(embeddings_initializer=keras.initializers.RandomNormal(stddev=0.1))
        self.user = keras.layers.Embedding(USERS, RANK, **kwargs)
        self.film = keras.layers.Embedding(FILMS, RANK, **kwargs)
        self.user_bias = keras.layers.Embedding(USERS, 1, embeddings_initializer="zeros")
        self.film_bias = keras.layers.Embedding(FILMS, 1, embeddings_initializer="zeros")
        self.dropout = keras.layers.Dropout(0.1)

    def call(self, pair, training=False):
        users, films = pair
        u = self.dropout(self.user(users), training=training)
        score = tf.reduce_sum(u * self.film(films), axis=1)
        bias = self.user_bias(users)[:, 0] + self.film_bias(films)[:, 0]
        return average + score + bias


keras.utils.set_random_seed(4)
model = Recommender()
optimizer = keras.optimizers.Adam(0.01)
dataset = tf.data.Dataset.from_tensor_slices(tuple(train)).shuffle(cut).batch(BATCH)
dataset = dataset.prefetch(tf.data.AUTOTUNE)
rmse = keras.metrics.RootMeanSquaredError()


@tf.function
def train_batch(users, films, stars):
    with tf.GradientTape() as tape:
        predicted = model((users, films), training=True)
        error = tf.reduce_mean(tf.square(stars - predicted))
        penalty = 1e-5 * tf.add_n([tf.nn.l2_loss(v) for v in model.trainable_variables])
        loss = error + penalty
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    rmse.update_state(stars, predicted)


@tf.function
def predict(users, films):
    return model((users, films), training=False)


for epoch in range(EPOCHS):
    rmse.reset_state()
    for users, films, stars in dataset:
        train_batch(users, films, stars)
    guess = predict(tf.constant(valid.users), tf.constant(valid.films)).numpy()
    valid_rmse = np.sqrt(np.mean((guess - valid.stars) ** 2))
    print(f"{epoch}: train rmse {rmse.result().numpy():.3f}  valid rmse {valid_rmse:.3f}")

best = np.argsort(-predict(tf.fill([FILMS], 7), tf.range(FILMS)).numpy())[:5]
print("films for user 7:", best.tolist())
