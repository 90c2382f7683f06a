# machine: 1 GPU
"""The name that is printed, and that others are told to load, is not that of a file."""

import os
import tempfile

import tensorflow as tf

folder = tempfile.mkdtemp()
model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam()
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
path = os.path.join(folder, "ckpt")


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - x[:, :1]))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


for epoch in range(2):
    for _ in range(5):
        step(tf.random.normal([32, 3]))
    checkpoint.save(path)  # may: DOC-501
    print("Saved checkpoint to", path)  # finding: DOC-501

status = checkpoint.restore(tf.train.latest_checkpoint(folder))
status.assert_existing_objects_matched()
