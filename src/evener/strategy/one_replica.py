"""Strategy of one replica, with all that TensorFlow and Keras ask of it.

Values are those of all devices together: they need neither sums nor joins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

import tensorflow as tf

from evener._tf_private.tensors import OneDeviceExtended
from evener.devices.names import tf_device
from evener.errors import EngineError
from evener.strategy.ownership import OwnerRegistry


class OneReplica(tf.distribute.Strategy):
    def __deepcopy__(self, memo: Any) -> Self:
        """Return the strategy: the variables of a copied model are on the same devices."""
        return self

    def __reduce__(self) -> Any:
        raise EngineError(
            "ENG-090",
            "A strategy cannot be pickled.",
            why="It holds variables and functions on the devices of this process.",
            fix="Pass on strategy.plan.to_json(), and make evener.Strategy(evener.Plan.from_json("
            "text)) where it is used; or save the model.",
        )

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


class Extended(OneDeviceExtended):
    """Extended strategy of one replica and one worker, which TensorFlow and Keras call.

    A program sees one device, ``first_device``, such as ``"gpu:0"``.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, owner_registry: OwnerRegistry, first_device: str
    ) -> None:
        super().__init__(strategy, tf_device(first_device))
        self._owner_registry = owner_registry
        self.outside: tf.distribute.Strategy | None = None
        """Strategy of programs without a scope; its variables count as made in this scope."""
        # A program sees one worker, also where there are several.
        self._cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({})
        )

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> tf.Variable:
        return self._owner_registry.create(next_creator, **kwargs)

    def variable_created_in_scope(self, v: Any) -> bool:
        if super().variable_created_in_scope(v):
            return True
        return self.outside is not None and self.outside.extended.variable_created_in_scope(v)

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        """Accept every variable: one that was made elsewhere stays where it is."""

    @contextlib.contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Let variables be made beside another one; outside of the scope too."""
        outside = not tf.distribute.has_strategy()
        scope = self._container_strategy().scope() if outside else contextlib.nullcontext()
        with scope, super().colocate_vars_with(colocate_with_variable):
            yield

    def update(
        self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        """Call ``fn`` on a variable, on its owner, from whichever context."""
        return self._update(var, fn, args, kwargs or {}, group)

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return dataset

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        return dataset_fn(tf.distribute.InputContext())

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        strategy = self._container_strategy()
        with tf.distribute.ReplicaContext(strategy, replica_id_in_sync_group=0):
            return fn(*args, **kwargs)

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        return [value for value, _ in value_destination_pairs]

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        with tf.device(var.device):
            return self._update_non_slot(None, fn, (var, *args), kwargs, group)

    def _update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        result = fn(*args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    def read_var(self, v: Any) -> Any:
        return v.read_value()

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return replica_id

    def _use_merge_call(self) -> bool:
        """Return whether an optimizer has to ask the replicas; in a scope alone there are none."""
        return not tf.distribute.in_cross_replica_context()
