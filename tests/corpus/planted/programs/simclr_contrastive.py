"""Self-supervised pre-training (SimCLR style), then a linear probe on few labels."""

import numpy as np
import tensorflow as tf
import keras
from keras import layers

keras.utils.set_random_seed(42)
AUTO = tf.data.AUTOTUNE
TEMPERATURE = 0.2
BATCH = 64
WIDTH = 64
EPOCHS = 3


def make_signals(n, seed):
    """Six kinds of 1-D signals with random phase and noise."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 6, n)
    t = np.linspace(0, 1, 128)[None, :]
    freq = (kind % 3 * 4 + 3)[:, None] + rng.normal(0, 0.2, (n, 1))
    wave = np.sin(2 * np.pi * freq * t + rng.uniform(0, 6.28, (n, 1)))
    wave = np.where((kind >= 3)[:, None], np.sign(wave), wave)
    wave = wave + rng.normal(0, 0.2, wave.shape)
    return wave[..., None].astype("float32"), kind.astype("int64")


def jitter(x):
    scale = tf.random.uniform([tf.shape(x)[0], 1, 1], 0.7, 1.3)
    shift = tf.random.uniform([], -20, 20, dtype=tf.int32)
    return tf.roll(x * scale, shift, axis=1) + tf.random.normal(tf.shape(x), stddev=0.1)


def two_views(x):
    return jitter(x), jitter(x)


signals, kinds = make_signals(3200, 0)
probe_x, probe_y = make_signals(600, 1)
test_x, test_y = make_signals(600, 2)

unlabelled = tf.data.Dataset.from_tensor_slices(signals).shuffle(3200)
unlabelled = unlabelled.batch(BATCH, drop_remainder=True).map(two_views, num_parallel_calls=AUTO)
unlabelled = unlabelled.prefetch(AUTO)

encoder = keras.Sequential(
    [
        keras.Input((128, 1)),
        layers.Conv1D(24, 7, strides=2, use_bias=False),
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
        layers.Conv1D(48, 5, strides=2, use_bias=False),
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
        layers.GlobalAveragePooling1D(),
        layers.Dense(WIDTH, activation="relu"),
    ]
)
projector = keras.Sequential(
    [keras.Input((WIDTH,)), layers.Dense(64, activation="relu"), layers.Dense(32)]
)
optimizer = keras.optimizers.Adam(2e-3)


def nt_xent(a, b):
    """Normalised temperature-scaled cross entropy between the two views of a batch."""
    a, b = tf.math.l2_normalize(a, axis=1), tf.math.l2_normalize(b, axis=1)
    similarities = tf.matmul(a, b, transpose_b=True) / TEMPERATURE
    labels = tf.range(tf.shape(a)[0])
    rows = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, similarities)
    columns = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.transpose(similarities))
    return tf.reduce_mean(rows + columns) / 2


@tf.function
def pretrain_step(view_a, view_b):
    with tf.GradientTape() as tape:
        za = projector(encoder(view_a, training=True), training=True)
        zb = projector(encoder(view_b, training=True), training=True)
        loss = nt_xent(za, zb)
    variables = encoder.trainable_variables + projector.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


for epoch in range(EPOCHS):
    mean = keras.metrics.Mean()
    for view_a, view_b in unlabelled:
        mean.update_state(pretrain_step(view_a, view_b))
    print(f"pre-training epoch {epoch}: contrastive loss {float(mean.result()):.4f}")

encoder.trainable = False
probe = keras.Sequential([keras.Input((128, 1)), encoder, layers.Dense(6)])
probe.compile(
    optimizer=keras.optimizers.Adam(0.02),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
probe.fit(probe_x, probe_y, epochs=8, batch_size=64, validation_data=(test_x, test_y), verbose=2)
