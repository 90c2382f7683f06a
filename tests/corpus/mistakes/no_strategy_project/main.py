# machine: 2 GPUs
"""A small project: options here, the model and the training in modules."""

import argparse

from project.training import Trainer


def get_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    args = get_args()
    trainer = Trainer(hidden=args.hidden, batch_size=args.batch_size)
    trainer.train(args.epochs)  # may: DOC-201
