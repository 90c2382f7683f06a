"""`tf.distribute.Strategy` of one replica: values are those of all devices together."""

from __future__ import annotations

from typing import Any, Self

import tensorflow as tf

from evener.strategy import misuse


class OneReplica(tf.distribute.Strategy):
    """Strategy of one replica, whose values need neither sums nor joins."""

    def __deepcopy__(self, memo: Any) -> Self:
        """Return the strategy: the variables of a copied model are on the same devices."""
        return self

    def __reduce__(self) -> Any:
        """Refuse to be pickled.

        Raises:
            EngineError: ENG-090, always.
        """
        raise misuse.not_picklable()

    @tf.autograph.experimental.do_not_convert
    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Return a value, or its sum or mean along an axis; inside of ``run`` too.

        Args:
            reduce_op: ``"SUM"`` or ``"MEAN"``.
            value: Tensor, or a nest of tensors.
            axis: Axis, such as 0 for the batch, or None for the value as it is.
        """
        if not self.is_running():
            return super().reduce(reduce_op, value, axis)
        name = getattr(reduce_op, "value", reduce_op).upper()
        along = {"SUM": tf.reduce_sum, "MEAN": tf.reduce_mean}[name]
        return tf.nest.map_structure(
            lambda tensor: tensor if axis is None else along(tensor, axis), value
        )

    @tf.autograph.experimental.do_not_convert
    def gather(self, value: Any, axis: int) -> Any:
        """Return a value, which is that of all devices; inside of ``run`` too.

        Args:
            value: Tensor.
            axis: Axis along which values of several replicas would be joined.
        """
        return value if self.is_running() else super().gather(value, axis)

    def is_running(self) -> bool:
        """Return whether this code is part of a call of ``run``."""
        is_here = tf.distribute.has_strategy() and tf.distribute.get_strategy() is self
        return is_here and not tf.distribute.in_cross_replica_context()
