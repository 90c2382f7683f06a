# machine: 2 GPUs
"""Two GPUs wait for one thread that decodes."""

import keras
import tensorflow as tf
from input_fn import spectrogram_dataset


def main():
    strategy = tf.distribute.MirroredStrategy()
    dataset = spectrogram_dataset(32 * strategy.num_replicas_in_sync)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((None, 65)),
                keras.layers.Conv1D(16, 5, activation="relu"),
                keras.layers.GlobalMaxPooling1D(),
                keras.layers.Dense(4, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(dataset, epochs=2)  # may: DOC-401


if __name__ == "__main__":
    main()
