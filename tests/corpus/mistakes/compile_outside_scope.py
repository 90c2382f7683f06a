# machine: 2 GPUs
"""The model is made in the scope; compile, with its optimizer, is not."""

import numpy as np
import tensorflow as tf
from keras import Input, Sequential, losses, optimizers
from keras import layers as L


def create_model():
    return Sequential(
        [Input((32,)), L.Dense(64, activation="relu"), L.LayerNormalization(), L.Dense(8)]
    )


def main():
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = create_model()

    model.compile(  # finding: ENG-003
        optimizer=optimizers.AdamW(1e-3, weight_decay=1e-4),  # may: ENG-003
        loss=losses.MeanSquaredError(),
    )
    x = np.random.normal(size=(512, 32)).astype("float32")
    model.fit(x, x[:, :8], batch_size=64 * strategy.num_replicas_in_sync, epochs=2)


if __name__ == "__main__":
    main()
