"""Pieces: what is computed at once, a replica's samples or one of its micro-batches."""

from __future__ import annotations

from typing import NamedTuple

from evener.plan import Plan


class Piece(NamedTuple):
    """What is computed at once: a replica's samples, or one of its micro-batches.

    Attributes:
        replica: Number of the replica.
        micro_batch: Number of the micro-batch.
        num_micro_batches: How many of them the replica has.
    """

    replica: int
    micro_batch: int
    num_micro_batches: int


def pieces_of(plan: Plan) -> list[Piece]:
    """Return the pieces of every batch, in the order of its samples.

    Example:
        >>> from evener.plan import Plan
        >>> plan = Plan.pipeline({"cpu:0": "a", "cpu:1": "b"}, num_micro_batches=3)
        >>> [piece.micro_batch for piece in pieces_of(plan)]
        [0, 1, 2]
    """
    return [
        Piece(number, micro_batch, replica.num_micro_batches)
        for number, replica in enumerate(plan.replicas)
        for micro_batch in range(replica.num_micro_batches)
    ]
