"""Train a small transformer in plain Keras, without any code for devices, plans or memory.

    python examples/uneven_train.py
    evener plan --devices cpu:1@100MiB,cpu:1@50MiB examples/uneven_train.py

It learns to continue Python's language reference (`pydoc_data.topics`, which comes with Python, (c)
Python Software Foundation, licence PSF-2.0), character by character. With ``--weights FILE`` the
trained weights are saved as a NumPy file. ``uneven.py`` runs it on devices of different memory.
"""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics

import keras
import numpy as np
from decoder import make_decoder

CONTEXT = 32
BATCH_SIZE = 64
STEPS = 30


def main() -> None:
    """Train, and save the weights if that is asked for."""
    parser = argparse.ArgumentParser(description="Train a small transformer.")
    parser.add_argument("--weights", metavar="FILE", help="save the trained weights as .npz")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--blocks", type=int, default=6)
    arguments = parser.parse_args()

    keras.utils.set_random_seed(1)
    text = "".join(topics.values())
    number = {character: k for k, character in enumerate(sorted(set(text)))}
    characters = np.array([number[character] for character in text], "int32")
    begins = np.random.default_rng(1).integers(len(characters) - CONTEXT, size=STEPS * BATCH_SIZE)
    windows = characters[begins[:, None] + np.arange(CONTEXT + 1)]
    model = make_decoder(
        len(number),
        context=CONTEXT,
        width=arguments.width,
        blocks=arguments.blocks,
        heads=4,
        warm_steps=STEPS,
    )
    history = model.fit(
        windows[:, :-1], windows[:, 1:], batch_size=BATCH_SIZE, shuffle=False, verbose=0
    )
    print(f"loss {history.history['loss'][0]:.4f}")
    if arguments.weights:
        np.savez(arguments.weights, *model.get_weights())


if __name__ == "__main__":
    main()
