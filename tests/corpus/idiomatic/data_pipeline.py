# machine: 1 GPU
"""Files, interleave, parallel map, cache, prefetch."""

import pathlib
import tempfile

import numpy as np
import tensorflow as tf

AUTOTUNE = tf.data.AUTOTUNE


def write_files(folder, count=4, rows=128):
    rng = np.random.default_rng(0)
    for i in range(count):
        with tf.io.TFRecordWriter(str(folder / f"part-{i}.tfrecord")) as writer:
            for _ in range(rows):
                values = rng.normal(size=8).astype("float32")
                feature = {
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=values)),
                    "y": tf.train.Feature(float_list=tf.train.FloatList(value=[values.sum()])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())


def parse(record):
    spec = {
        "x": tf.io.FixedLenFeature([8], tf.float32),
        "y": tf.io.FixedLenFeature([1], tf.float32),
    }
    example = tf.io.parse_single_example(record, spec)
    return example["x"], example["y"]


def make_dataset(folder, batch_size):
    files = tf.data.Dataset.list_files(str(folder / "*.tfrecord"), seed=1)
    dataset = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=AUTOTUNE)
    dataset = dataset.map(parse, num_parallel_calls=AUTOTUNE).cache().shuffle(512)
    return dataset.batch(batch_size, drop_remainder=True).prefetch(AUTOTUNE)


def main():
    folder = pathlib.Path(tempfile.mkdtemp())
    write_files(folder)
    model = tf.keras.Sequential(
        [tf.keras.Input((8,)), tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", steps_per_execution=4)
    model.fit(make_dataset(folder, 64), epochs=2)


if __name__ == "__main__":
    main()
