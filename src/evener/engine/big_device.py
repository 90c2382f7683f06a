"""A strategy of one replica, which is all devices together: what `Strategy` becomes.

A program sees one device. Keras's own ``fit``, ``evaluate`` and ``predict`` call ``run``, and so
does a loop of one's own; ``run`` partitions what it is given. Nothing else is needed: no step of
ours, nothing replaced in TensorFlow or Keras.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.engine.distribute import DistributedStep
from evener.engine.ownership import Ledger, tf_device
from evener.engine.report import StepReport
from evener.engine.sharing import Sharing
from evener.errors import EngineError
from evener.plan import Plan, check_shares

HOST = "cpu:0"


class BigDevice(tf.distribute.Strategy):
    """Trains on several devices as one device would.

    ``num_replicas_in_sync`` is 1. ``run(f, args)`` is one call of ``f`` on the whole batch, and
    its value is a tensor.

    Args:
        plan: Which devices compute, with which shares, and who owns the variables; one stage
            per replica, one micro-batch.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        names = [replica.stages[0].device for replica in plan.replicas]
        self._names = tuple(names)
        self._sharing = Sharing(names, [one.share for one in plan.replicas], measured=False)
        self._ledger = Ledger(plan, [device.name for device in plan.devices], HOST)
        self._steps: weakref.WeakKeyDictionary[Any, DistributedStep] = weakref.WeakKeyDictionary()
        self._traced: list[DistributedStep] = []
        super().__init__(_Extended(self, self._ledger))

    @property
    def plan(self) -> Plan:
        """The plan, with the shares of this moment."""
        return self._plan.with_shares(self.shares)

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of every batch that each device computes; sums to 1."""
        return self._sharing.shares

    def set_shares(self, shares: Sequence[float]) -> None:
        """Change the shares from the next step on. Nothing is traced again."""
        expected = len(self._names)
        self._sharing.assign(check_shares(shares, num_expected=expected, expected="devices"))

    @property
    def ledger(self) -> Ledger:
        """Every variable made in the scope, with its owner."""
        return self._ledger

    def report(self) -> StepReport:
        """Return what was gathered in all steps so far."""
        return StepReport.of([one for step in self._traced for one in step.partitioned_steps])

    @tf.autograph.experimental.do_not_convert
    def run(
        self,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call a function once, on the whole batch, computed by all devices.

        In a `tf.function`, or with a `tf.function`, the call is partitioned. A plain function that
        is called eagerly runs as it is written, on one device.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.
            options: Not used.

        Returns:
            What the function returns.
        """
        kwargs = dict(kwargs or {})
        is_function = isinstance(fn, tf.types.experimental.PolymorphicFunction)
        # XLA compiles for one device.
        in_xla = _tf_private.in_xla(tf.compat.v1.get_default_graph())
        if len(self._names) == 1 or in_xla or (tf.executing_eagerly() and not is_function):
            return super().run(fn, args=tuple(args), kwargs=kwargs)
        return self._step_for(fn)(*args, **kwargs)

    def _step_for(self, fn: Callable[..., Any]) -> DistributedStep:
        if not tf.executing_eagerly():
            return self._distributed(fn)
        if fn not in self._steps:
            self._steps[fn] = self._distributed(fn)
        return self._steps[fn]

    def _distributed(self, fn: Callable[..., Any]) -> DistributedStep:
        plain = super().run

        @tf.autograph.experimental.do_not_convert
        def call(*args: Any, **kwargs: Any) -> Any:
            return plain(fn, args=args, kwargs=kwargs)

        step = DistributedStep(
            call,
            devices=self._names,
            shares=self._sharing.shares,
            live_shares=self._sharing.variable,
        )
        self._traced.append(step)
        return step


class _Extended(tf.compat.v1.distribute.StrategyExtended):
    """What TensorFlow and Keras ask a strategy behind its public face.

    Args:
        strategy: The strategy it belongs to.
        ledger: Makes variables on their owners.
    """

    def __init__(self, strategy: BigDevice, ledger: Ledger) -> None:
        super().__init__(strategy)
        self._ledger = ledger
        self._first = tf_device(strategy._names[0])

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> tf.Variable:
        variable, _ = self._ledger.create(next_creator, **kwargs)
        return variable

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not self._ledger.holds(colocate_with_variable):
            raise EngineError(
                "ENG-003",
                f"The variable {colocate_with_variable.name!r} was not made in this scope.",
                why="An optimizer's state lives beside its variable, which has no owner here.",
                fix="Make the model inside `with strategy.scope():`, before the optimizer.",
            )

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return dataset

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        return dataset_fn(tf.distribute.InputContext())

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        return value_fn(tf.distribute.experimental.ValueContext(0, 1))

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        strategy = self._container_strategy()
        with tf.distribute.ReplicaContext(strategy, replica_id_in_sync_group=0):
            return fn(*args, **kwargs)

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        return value

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        return [value for value, _ in value_destination_pairs]

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: Any, options: Any
    ) -> Any:
        return value

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        return tensor

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        with tf.device(var.device):
            result = fn(var, *args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    def _update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        result = fn(*args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    def read_var(self, replica_local_var: Any) -> Any:
        """Return the value of a variable."""
        return replica_local_var.read_value()

    def _local_results(self, val: Any) -> tuple[Any, ...]:
        return (val,)

    def value_container(self, value: Any) -> Any:
        """Return the variable that holds a component; every variable is whole."""
        return value

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of the one replica, as far as a program sees."""
        return (self._first,)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The device of the variables, as far as a program sees."""
        return (self._first,)

    def non_slot_devices(self, var_list: Any) -> tuple[str, ...]:
        """Return the device for state that belongs to no variable."""
        del var_list
        return (self._first,)

    @property
    def _num_replicas_in_sync(self) -> int:
        return 1

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return replica_id

    def _in_multi_worker_mode(self) -> bool:
        return False

    @property
    def _global_batch_size(self) -> bool:
        return True

    @property
    def experimental_between_graph(self) -> bool:
        """Whether each worker builds its own graph; there is one worker."""
        return False

    @property
    def experimental_require_static_shapes(self) -> bool:
        """Whether batches must have a fixed size; they need not."""
        return False

    @property
    def experimental_should_init(self) -> bool:
        """Whether this process initialises the variables."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process writes checkpoints."""
        return True

    @property
    def should_save_summary(self) -> bool:
        """Whether this process writes summaries."""
        return True
