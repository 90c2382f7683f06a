"""BYOL: an online network predicts the output of a slowly moving target network."""

import numpy as np
import tensorflow as tf
import keras
from keras import layers

keras.utils.set_random_seed(25)
BATCH, EPOCHS, DECAY = 64, 3, 0.98


def points(n, seed):
    centers = np.random.default_rng(3).normal(0, 2, (8, 32))
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 8, n)
    return (centers[group] + rng.normal(0, 0.7, (n, 32))).astype("float32"), group


def view(x):
    kept = tf.cast(tf.random.uniform(tf.shape(x)) > 0.15, x.dtype)
    return x * kept + tf.random.normal(tf.shape(x), stddev=0.2)


def make_encoder(name):
    return keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(128, use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Dense(48),
        ],
        name=name,
    )


online, target = make_encoder("online"), make_encoder("target")
target.set_weights(online.get_weights())
# Only the moving average changes the target; no gradient ever does.
target.trainable = False
predictor = keras.Sequential(
    [keras.Input((48,)), layers.Dense(96, activation="relu"), layers.Dense(48)]
)
optimizer = keras.optimizers.Adam(2e-3)

x_train, _ = points(4800, 0)
dataset = tf.data.Dataset.from_tensor_slices(x_train).shuffle(4800)
dataset = dataset.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def distance(predicted, wanted):
    predicted = tf.math.l2_normalize(predicted, axis=1)
    wanted = tf.math.l2_normalize(tf.stop_gradient(wanted), axis=1)
    return 2 - 2 * tf.reduce_mean(tf.reduce_sum(predicted * wanted, axis=1))


@tf.function
def train_step(x):
    a, b = view(x), view(x)
    target_a, target_b = target(a, training=True), target(b, training=True)
    with tf.GradientTape() as tape:
        guess_b = predictor(online(a, training=True), training=True)
        guess_a = predictor(online(b, training=True), training=True)
        loss = distance(guess_b, target_b) + distance(guess_a, target_a)
    variables = online.trainable_variables + predictor.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    for slow, fast in zip(target.weights, online.weights):
        slow.assign(DECAY * slow + (1 - DECAY) * fast)
    return loss


mean = keras.metrics.Mean()
for epoch in range(EPOCHS):
    mean.reset_state()
    for x in dataset:
        mean.update_state(train_step(x))
    print(f"epoch {epoch}: loss {float(mean.result()):.4f}")

# do neighbours in the learned space belong to the same group?
test_x, test_group = points(800, 1)
z = tf.math.l2_normalize(online.predict(test_x, batch_size=256, verbose=0), axis=1)
nearest = tf.math.top_k(tf.matmul(z, z, transpose_b=True), k=2).indices[:, 1].numpy()
print("same group as the nearest neighbour:", (test_group[nearest] == test_group).mean())
