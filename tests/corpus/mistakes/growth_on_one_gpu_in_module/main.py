# machine: 4 GPUs
"""The set-up is in a module; the training is on all four GPUs."""

import argparse

import numpy as np
from devices import setup_gpu, make_strategy

import keras


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--per-replica-batch", type=int, default=32)
    return parser.parse_args()


def main():
    args = parse()
    setup_gpu()
    strategy = make_strategy()
    batch_size = args.per_replica_batch * strategy.num_replicas_in_sync
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((50,)), keras.layers.Dense(20, "relu"), keras.layers.Dense(50)]
        )
        model.compile("adam", "mse")
    x = np.random.normal(size=(640, 50)).astype("float32")
    model.fit(x, x, batch_size=batch_size, epochs=args.epochs)


if __name__ == "__main__":
    main()
