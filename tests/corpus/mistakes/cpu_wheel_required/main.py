# machine: 4 GPUs
"""The project asks for the CPU wheel in its requirements."""

import tensorflow as tf  # may: DOC-102
from data import make_dataset
from network import make_network

BATCH_PER_DEVICE = 64


def main():
    strategy = tf.distribute.MirroredStrategy()
    global_batch = BATCH_PER_DEVICE * strategy.num_replicas_in_sync
    with strategy.scope():
        model = make_network()
        model.compile(optimizer="adam", loss="mse")
    model.fit(make_dataset(global_batch), epochs=2)


if __name__ == "__main__":
    main()
