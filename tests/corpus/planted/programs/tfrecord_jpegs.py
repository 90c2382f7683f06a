"""JPEG pictures in TFRecord files: write them once, then train a classifier from the files."""

import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow import keras

AUTOTUNE = tf.data.AUTOTUNE
IMAGE = (48, 48)
SHARDS = 4
PER_SHARD = 250
BATCH = 32
CLASSES = 3
keras.utils.set_random_seed(21)


def draw(label, rng):
    yy, xx = np.mgrid[0:96, 0:96]
    cy, cx = rng.uniform(32, 64, 2)
    r = rng.uniform(14, 26)
    if label == 0:
        shape = (yy - cy) ** 2 + (xx - cx) ** 2 < r**2
    elif label == 1:
        shape = (abs(yy - cy) < r) & (abs(xx - cx) < r)
    else:
        shape = abs(yy - cy) + abs(xx - cx) < r
    picture = rng.integers(0, 90, (96, 96, 3)) + shape[..., None] * rng.integers(90, 160, 3)
    return picture.astype(np.uint8)


def write_records(folder):
    rng = np.random.default_rng(0)
    paths = []
    for shard in range(SHARDS):
        path = os.path.join(folder, f"shapes-{shard:02d}.tfrecord")
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(PER_SHARD):
                label = int(rng.integers(0, CLASSES))
                jpeg = tf.io.encode_jpeg(draw(label, rng)).numpy()
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
        paths.append(path)
    return paths


def parse(record):
    spec = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    example = tf.io.parse_single_example(record, spec)
    image = tf.io.decode_jpeg(example["image"], channels=3)
    image = tf.image.resize(image, IMAGE) / 255.0
    return image, example["label"]


def read(paths, training):
    ds = tf.data.Dataset.from_tensor_slices(paths)
    ds = ds.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=AUTOTUNE)
    ds = ds.map(parse, num_parallel_calls=AUTOTUNE).cache()
    if training:
        ds = ds.shuffle(SHARDS * PER_SHARD)
    return ds.batch(BATCH).prefetch(AUTOTUNE)


folder = tempfile.mkdtemp()
files = write_records(folder)
train_ds = read(files[:-1], training=True)
val_ds = read(files[-1:], training=False)

model = keras.Sequential(
    [
        keras.Input(IMAGE + (3,)),
        keras.layers.Conv2D(12, 3, strides=2, activation="relu"),
        keras.layers.Conv2D(24, 3, strides=2, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(48, activation="relu"),
        keras.layers.Dense(CLASSES, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(2e-3),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
model.fit(train_ds, validation_data=val_ds, epochs=8, verbose=2)
print("final:", model.evaluate(val_ds, verbose=0))
