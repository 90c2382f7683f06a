# machine: 1 GPU
"""Loads a model and measures it; nothing is trained."""

import argparse
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf


def saved_model():
    path = pathlib.Path(tempfile.mkdtemp()) / "model.keras"
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, activation="softmax")])
    model.save(path)
    return path


def confusion(model, dataset, classes):
    matrix = tf.zeros([classes, classes], tf.int32)
    predict = tf.function(lambda x: model(x, training=False), reduce_retracing=True)
    for x, y in dataset:
        found = tf.argmax(predict(x), axis=1)
        matrix += tf.math.confusion_matrix(y, found, num_classes=classes)
    return matrix.numpy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=pathlib.Path)
    args = parser.parse_args()
    model = keras.models.load_model(args.model or saved_model())
    x = np.random.default_rng(0).normal(size=(300, 8)).astype("float32")
    y = np.argmax(x[:, :3], axis=1)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(100).prefetch(1)
    matrix = confusion(model, dataset, 3)
    print(matrix, "accuracy", np.trace(matrix) / matrix.sum())


if __name__ == "__main__":
    main()
