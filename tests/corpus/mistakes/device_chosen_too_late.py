# machine: 2 GPUs
"""One GPU is chosen on the command line, after TensorFlow has taken both."""

import argparse
import os

import numpy as np
import tensorflow as tf


def describe_machine():
    for device in tf.config.list_logical_devices():
        print(device.name, device.device_type)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", default="1", help="which GPU to use")
    args = parser.parse_args()

    describe_machine()
    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu  # finding: DOC-104

    x = np.random.rand(256, 10).astype("float32")
    y = x @ np.arange(10, dtype="float32")[:, None]
    model = tf.keras.Sequential(
        [tf.keras.Input((10,)), tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=64, epochs=2)  # may: DOC-201


if __name__ == "__main__":
    main()
