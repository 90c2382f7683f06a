"""CPU seconds of loops whose batches have other lengths all the time, as texts and graphs have.

    python benchmarks/changing_lengths.py

A turn is a new step of a new model: what is traced again for another length counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from side_by_side.contenders import stand_ins
from side_by_side.workers import Worker, closing

PLAIN, EVENER, MIRRORED = "plain TensorFlow", "evener", "MirroredStrategy"
LENGTHS = (24, 40, 32, 17, 24, 29, 36, 40, 21, 32)
BATCH, VOCABULARY, WIDTH, BLOCKS = 16, 256, 96, 4


class Loop:
    """A contender.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._devices = stand_ins(1 if name == PLAIN else 2)

    def turn(self, problem: str, num_steps: int) -> float:
        """Return the CPU seconds of a loop."""
        import keras
        import numpy as np
        import tensorflow as tf

        import evener

        keras.utils.set_random_seed(1)
        rng = np.random.default_rng(0)
        make, signature = PROBLEMS[problem]
        batches = [make_batch(problem, LENGTHS[k % len(LENGTHS)], rng) for k in range(num_steps)]
        options = {"input_signature": signature()} if problem.endswith("signature") else {}
        options |= {"reduce_retracing": True} if problem.endswith("relaxed") else {}
        if self._name == MIRRORED:
            # Values of replicas fit no signature.
            options = {"reduce_retracing": True} if options else {}
            strategy = tf.distribute.MirroredStrategy(self._devices)
            with strategy.scope():
                body = make()
            step: Any = tf.function(lambda *batch: strategy.run(body, batch), **options)
        else:
            step = tf.function(make(), **options)
        if self._name == EVENER:
            devices = [name.lower() for name in self._devices]
            step = evener.distribute(step, devices=devices, shares="even", verify=False)
        begin = time.process_time()
        for batch in batches:
            given = [tf.constant(array) for array in batch]
            if self._name == MIRRORED:
                given = [_halves(strategy, tensor) for tensor in given]
            result = step(*given)
        # The last loss is there when all is done.
        for value in getattr(result, "values", [result]):
            float(value)
        return time.process_time() - begin


def _halves(strategy: Any, tensor: Any) -> Any:
    """Return the half of a batch for each of two replicas."""

    def half(context: Any) -> Any:
        count = tensor.shape[0] // 2
        rows = tensor[count * context.replica_id_in_sync_group :][:count]
        # The edges of a graph of half the size.
        return rows // 2 if tensor.shape[1:] == [2] else rows

    return strategy.experimental_distribute_values_from_function(half)


def make_batch(problem: str, length: int, rng: Any) -> tuple[Any, ...]:
    """Return texts of a length, or a graph of so many nodes for each sample."""
    if problem.startswith("text"):
        return (rng.integers(0, VOCABULARY, (BATCH, length + 1)).astype("int32"),)
    nodes = BATCH * length
    edges = rng.integers(0, nodes, (4 * nodes, 2)).astype("int32")
    return rng.normal(size=(nodes, WIDTH)).astype("float32"), edges


def text() -> Callable[..., Any]:
    """Return a step of a language model with dropout."""
    import keras
    import tensorflow as tf

    def weight(*shape: int) -> tf.Variable:
        return tf.Variable(tf.random.normal(shape, stddev=0.05))

    table = weight(VOCABULARY, WIDTH)
    sizes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
    blocks = [[weight(*size) for size in sizes] for _ in range(BLOCKS)]
    weights = [table, *(w for block in blocks for w in block)]
    optimizer = keras.optimizers.Adam()
    optimizer.build(weights)

    def step(texts: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.nn.dropout(tf.gather(table, texts[:, :-1]), 0.1)
            for attention, out, up, down in blocks:
                query, key, value = tf.split(hidden @ attention, 3, -1)
                scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / WIDTH**0.5)
                hidden += tf.nn.dropout((tf.nn.dropout(scores, 0.1) @ value) @ out, 0.1)
                hidden += tf.nn.dropout(tf.nn.gelu(hidden @ up) @ down, 0.1)
            logits = tf.einsum("btd,vd->btv", hidden, table)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(texts[:, 1:], logits)
            loss = tf.reduce_mean(losses)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return step


def graph() -> Callable[..., Any]:
    """Return a step of a network on graphs, whose messages run along edges."""
    import keras
    import tensorflow as tf

    weights = [tf.Variable(tf.random.normal([WIDTH, WIDTH], stddev=0.1)) for _ in range(6)]
    optimizer = keras.optimizers.Adam()
    optimizer.build(weights)

    def step(nodes: Any, edges: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = nodes
            for weight in weights:
                sent = tf.gather(tf.nn.dropout(hidden, 0.1) @ weight, edges[:, 0])
                met = tf.math.unsorted_segment_sum(sent, edges[:, 1], tf.shape(nodes)[0])
                hidden = tf.tanh(hidden + met)
            loss = tf.reduce_mean(tf.square(hidden))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return step


def _text_signature() -> list[Any]:
    import tensorflow as tf

    return [tf.TensorSpec([None, None], tf.int32)]


def _graph_signature() -> list[Any]:
    import tensorflow as tf

    return [tf.TensorSpec([None, WIDTH]), tf.TensorSpec([None, 2], tf.int32)]


PROBLEMS: dict[str, tuple[Callable[[], Callable[..., Any]], Callable[[], list[Any]]]] = {
    "text, signature": (text, _text_signature),
    "text, relaxed": (text, _text_signature),
    "text, a trace for each length": (text, _text_signature),
    "graph, signature": (graph, _graph_signature),
    "graph, relaxed": (graph, _graph_signature),
}


def main() -> None:
    """Print the medians of all contenders, and their ratios to plain TensorFlow."""
    parser = argparse.ArgumentParser(description="What batches of changing lengths cost.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--problems", default=";".join(PROBLEMS))
    options = parser.parse_args()
    team = {name: Worker(Loop, name=name) for name in (PLAIN, EVENER, MIRRORED)}
    with closing(*team.values()):
        for problem in options.problems.split(";"):
            seconds: dict[str, list[float]] = {name: [] for name in team}
            order = list(team)
            for _ in range(options.rounds):
                for name in order:
                    seconds[name].append(team[name].call("turn", problem, options.steps))
                order = order[1:] + order[:1]
            medians = {name: statistics.median(found) for name, found in seconds.items()}
            texts = (f"{n}: {s:.1f} s ({s / medians[PLAIN]:.2f})" for n, s in medians.items())
            print(f"{problem}, {options.steps} steps: {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
