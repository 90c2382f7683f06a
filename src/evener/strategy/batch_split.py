"""Split of a batch: the samples of each replica, by shares that may change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.partition.homes import HOST
from evener.engine.partition.sizes import part_sizes_in_graph
from evener.plan import check_shares, split_batch
from evener.strategy.arguments import different_sizes
from evener.strategy.prepared import PreparedStep
from evener.strategy.share_controller import ShareController


class BatchSplit:
    """Split of the batches of a step among replicas.

    Args:
        shares: Relative shares, one per replica.
        num_replicas: Number of replicas.
        controller: Shares that can change between the runs of a graph; None for constant ones.

    Attributes:
        controller: Controller, if there is one.
    """

    def __init__(
        self, shares: Sequence[float], num_replicas: int, controller: ShareController | None
    ) -> None:
        self._num_replicas = num_replicas
        self._shares = check_shares(shares, num_expected=num_replicas)
        self.controller = controller

    @property
    def shares(self) -> Sequence[float]:
        """The current shares, relative to each other."""
        return self._shares if self.controller is None else self.controller.shares

    def assign(self, shares: Sequence[float]) -> None:
        """Use other shares from the next step on.

        Raises:
            PlanError: If a share is negative, all are 0, or their number is wrong.
        """
        self._shares = check_shares(shares, num_expected=self._num_replicas)
        if self.controller is not None:
            self.controller.assign(self._shares)

    def sizes(self, num_samples: int | None, trace: PreparedStep) -> list[int]:
        """Return the samples of each replica; of a step without samples, the rows that it draws.

        Args:
            num_samples: Number of samples of the batch; None if no argument has samples.
            trace: Step that will run.
        """
        if num_samples is None:
            num_rows = trace.rows_without_batch
            if num_rows == 1:
                first = next(k for k, share in enumerate(self.shares) if share > 0)
                return [int(k == first) for k in range(self._num_replicas)]
            return list(split_batch(num_rows, self.shares))
        if self.controller is not None:
            self.controller.limit_for(num_samples, trace.memory_limits)
        return list(split_batch(num_samples, self.shares))

    def sizes_in_graph(self, tensors: Sequence[Any], trace: PreparedStep) -> tf.Tensor:
        """Return the samples of each replica in the graph that is being built, int32 vector.

        Args:
            tensors: Arguments of the step, flat.
            trace: Step that will run.
        """
        pairs = zip(tensors, trace.batch_axes, strict=True)
        counts = [tf.shape(tensor)[axis] for tensor, axis in pairs if axis is not None]
        if not counts:
            return self._sizes_without_batch(trace)
        equal = [[tf.shape(tensors[k])[0] for k in indices] for indices in trace.equal_sizes]
        with tf.device(HOST), tf.control_dependencies(_checks_of_equal(equal or [counts])):
            count = tf.identity(counts[0])
            if self.controller is None:
                return part_sizes_in_graph(count, self._shares)
            shares = self.controller.shares_in_graph(count, trace.memory_limits)
            return part_sizes_in_graph(count, shares)

    def _sizes_without_batch(self, trace: PreparedStep) -> tf.Tensor:
        is_fixed = trace.rows_without_batch == 1 and not trace.may_change_members
        if is_fixed or self.controller is None:
            return tf.constant(self.sizes(None, trace))
        with tf.device(HOST):
            count = tf.constant(trace.rows_without_batch)
            return part_sizes_in_graph(count, self.controller.shares_in_graph(count, None))


def _checks_of_equal(sets: Iterable[Sequence[tf.Tensor]]) -> list[Any]:
    """Return checks that sizes are equal, for sizes that are only known while the step runs."""
    message = str(different_sizes("they differ"))
    checks = (
        tf.debugging.assert_equal(count, counts[0], message)
        for counts in sets
        for count in counts[1:]
    )
    return [check for check in checks if check is not None]
