"""Batches of arrays: what it costs a worker to take whole ones, or only half of their rows.

    python benchmarks/array_batches.py

Keras takes a batch of arrays in one copy of its rows. A worker that takes its own rows alone has to
fill the others with zeros, for the shape of the batch is that of all rows. Both are timed in turns,
by one thread, as are rows that are put in one piece before the zeros.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

WAYS = ("whole", "own rows", "own rows, in one piece")
SHAPES = ((60_000, 784), (50_000, 32, 32, 3), (200_000, 64))


def taking(way: str, array: tf.Tensor, batch_size: int) -> Callable[[Any], Any]:
    """Return a function of the indices of a batch, which takes its rows out of an array."""
    rest, own = tuple(array.shape[1:]), batch_size // 2

    def of_marks(indices: Any) -> Any:
        rows = tf.where(tf.range(batch_size) < own)
        taken = tf.gather(array, tf.gather(indices, rows[:, 0]))
        return tf.tensor_scatter_nd_update(tf.zeros([batch_size, *rest]), rows, taken)

    def of_one_piece(indices: Any) -> Any:
        zeros = tf.zeros([batch_size - own, *rest])
        return tf.concat([tf.gather(array, indices[:own]), zeros], 0)

    if way == WAYS[0]:
        return lambda indices: tf.gather(array, indices)
    return of_marks if way == WAYS[1] else of_one_piece


def milliseconds(way: str, array: tf.Tensor, batch_size: int, num_batches: int = 40) -> float:
    """Return the time of a batch."""
    order = tf.constant(np.random.default_rng(0).permutation(len(array)))
    batches = tf.reshape(order[: len(array) // batch_size * batch_size], [-1, batch_size])
    data = tf.data.Dataset.from_tensor_slices(batches).repeat()
    iterator = iter(data.map(taking(way, array, batch_size)))
    next(iterator)
    begin = time.perf_counter()
    for _ in range(num_batches):
        next(iterator)
    return (time.perf_counter() - begin) / num_batches * 1e3


def main() -> None:
    """Print the medians of all ways, in milliseconds."""
    parser = argparse.ArgumentParser(description="What batches of arrays cost a worker.")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    tf.config.threading.set_intra_op_parallelism_threads(1)
    for shape in SHAPES:
        array = tf.random.uniform(shape)
        for batch_size in (512, 4096):
            times: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way in WAYS:
                    times[way].append(milliseconds(way, array, batch_size))
            medians = (f"{way}: {statistics.median(found):.2f} ms" for way, found in times.items())
            print(f"rows of {shape[1:]}, batch {batch_size}: {', '.join(medians)}")


if __name__ == "__main__":
    main()
