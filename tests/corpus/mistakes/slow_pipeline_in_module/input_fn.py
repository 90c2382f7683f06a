import numpy as np
import tensorflow as tf


def to_spectrogram(wave, kind):
    spectrum = tf.signal.stft(wave, frame_length=128, frame_step=64)
    return tf.math.log(tf.abs(spectrum) + 1e-6), kind


def spectrogram_dataset(batch_size):
    waves = np.random.normal(size=(256, 2048)).astype("float32")
    kinds = np.random.randint(0, 4, 256)
    return (
        tf.data.Dataset.from_tensor_slices((waves, kinds))  # may: DOC-401
        .shuffle(256)
        .map(to_spectrogram)  # finding: DOC-401
        .batch(batch_size)  # may: DOC-401
    )
