# machine: 4 GPUs
"""A project of several files: options, data, network, training."""

import argparse
import dataclasses

from training.config import Config
from training.loop import Loop


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for field in dataclasses.fields(Config):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    config = Config(**vars(parser.parse_args()))
    loop = Loop(config)
    for epoch in range(config.epochs):
        print("epoch", epoch, "loss", loop.epoch())


if __name__ == "__main__":
    main()
