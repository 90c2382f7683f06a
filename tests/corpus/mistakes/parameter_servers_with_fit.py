# machine: 1 GPU
"""Parameter servers under Keras fit, without a coordinator."""

import json
import os

import numpy as np
import tensorflow as tf

os.environ["TF_CONFIG"] = json.dumps(
    {
        "cluster": {
            "worker": ["localhost:20001", "localhost:20002"],
            "ps": ["localhost:20003"],
            "chief": ["localhost:20004"],
        },
        "task": {"type": "chief", "index": 0},
    }
)


def make_model():
    return tf.keras.Sequential(
        [tf.keras.Input((16,)), tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)]
    )


def main():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)  # may: DOC-210
    with strategy.scope():
        model = make_model()
        model.compile(optimizer="adam", loss="mse")
    x = np.random.rand(1024, 16).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).repeat().batch(64).prefetch(2)
    model.fit(dataset, epochs=2, steps_per_epoch=16)  # finding: DOC-210


if __name__ == "__main__":
    main()
