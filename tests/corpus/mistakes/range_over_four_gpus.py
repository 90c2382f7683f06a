# machine: 2 GPUs
"""Data parallel by hand: one tower on each of "the" four GPUs."""

import numpy as np
import tensorflow as tf

model = tf.keras.Sequential(
    [
        tf.keras.Input((16,)),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(2),
    ]
)
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(1e-3)


@tf.function
def train_step(images, labels):
    image_shards = tf.split(images, 4)  # may: DOC-108
    label_shards = tf.split(labels, 4)  # may: DOC-108
    tower_gradients = []
    for i in range(4):  # finding: DOC-108
        with tf.device(f"/gpu:{i}"):  # may: DOC-107, DOC-108
            with tf.GradientTape() as tape:
                loss = loss_fn(label_shards[i], model(image_shards[i], training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            tower_gradients.append(gradients)
    mean = [tf.add_n(parts) / 4.0 for parts in zip(*tower_gradients)]  # may: DOC-108
    optimizer.apply_gradients(zip(mean, model.trainable_variables))


x = np.random.normal(size=(640, 16)).astype("float32")
y = (x[:, 0] > 0).astype("int32")
for start in range(0, 640, 128):
    train_step(  # may: DOC-201
        x[start : start + 128], y[start : start + 128]
    )
print("accuracy", np.mean(np.argmax(model.predict(x), axis=1) == y))
