"""Asking a model what its added losses mean; see `evener.engine.staged.added`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from evener.engine.staged import added, split
from evener.engine.staged.program import Program
from evener.engine.staged.replica import ReplicaInput

# Noise on the weights, for terms that are zero with the weights they begin with.
_NOISES = (0.0, 0.1, 1.0, 10.0)


def kinds_of_added(program: Program, data: Any, *, training: bool) -> list[added.AddedKind]:
    """Return the kind of every ``add_loss`` term.

    Args:
        program: The program of the model.
        data: A global batch, as eager tensors or arrays.
        training: Whether to ask about the terms of training or of testing.
    """
    halves = _halves(split.unpack(data))
    expected = program.replica.num_added[training]
    # Dropout and batch statistics would blur what is looked for, so the model is called as
    # for testing, if it then adds as many losses.
    as_training = training and len(_terms(program, halves[0], 0.0, training=False)) != expected
    kinds: list[added.AddedKind | None] = [None] * expected
    for noise in _NOISES:
        one, other, both = (_terms(program, half, noise, training=as_training) for half in halves)
        found = added.kinds_from_probe(one, other, both, num_replicas=len(program.pieces))
        kinds = [old or new for old, new in zip(kinds, found, strict=True)]
        if None not in kinds:
            break
    return added.or_mean(kinds, num_replicas=len(program.pieces))


def _halves(data: Any) -> tuple[Any, Any, Any]:
    """Return some samples, as many others, and all of them."""
    half = min(added.HALF, int(split.batch_size(data)) // 2)
    if half:
        one, other = split.take(data, 0, half), split.take(data, half, 2 * half)
    else:
        one = other = split.take(data, 0, 1)
    return one, other, split.join([one, other])


def _terms(program: Program, data: Any, noise: float, *, training: bool) -> list[float]:
    weights, state = program.borrow(0)
    known = dict(program.replica.num_added)
    given = ReplicaInput(batch=data, num_samples=split.batch_size(data), weight=tf.ones([]))
    outputs = program.replica.forward(
        [_disturbed(w, k, noise) for k, w in enumerate(weights)], state, given, training=training
    )
    program.replica.num_added = known
    return [float(term) for term in outputs.added]


def _disturbed(weight: tf.Tensor, index: int, noise: float) -> tf.Tensor:
    if not noise or not weight.dtype.is_floating:
        return weight
    drawn = tf.random.stateless_normal(tf.shape(weight), seed=(20, index), dtype=weight.dtype)
    return weight + tf.cast(noise, weight.dtype) * drawn
