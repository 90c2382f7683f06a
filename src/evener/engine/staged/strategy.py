"""The strategy of plans that cut a batch in time or a model into stages: several replicas.

`evener.Strategy` gives it for a plan with stages, micro-batches or recomputation, which the
partitioner does not run yet. To a program, every micro-batch is a replica.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.engine.ownership import tf_device
from evener.engine.staged.loops import combine, data
from evener.engine.staged.loops import run as runs
from evener.engine.staged.loops.install import install_stages
from evener.engine.staged.loops.run import Run
from evener.engine.staged.loops.variables import LoopState, own
from evener.engine.staged.pieces import pieces_of
from evener.engine.strategy import (
    HOST,
    OneWorkerExtended,
    Strategy,
    refuse_with_plan,
    use_devices_of,
)
from evener.errors import EngineError
from evener.plan import Plan


class StagedStrategy(Strategy):
    """Trains Keras models in stages and micro-batches. Made by `evener.Strategy`.

    Args:
        plan: What runs where. Excludes the other arguments.
        devices: Must be None.
        shares: Must be None.
        owners: Must be None.

    Raises:
        DeviceError: If a device does not exist or cannot be configured any more.
        PlanError: If the plan is not for this machine, or there are other arguments.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        devices: str | Sequence[str] | None = None,
        shares: str | Sequence[float] | None = None,
        owners: str | Mapping[str, str] | None = None,
    ) -> None:
        refuse_with_plan(devices=devices, shares=shares, owners=owners)
        use_devices_of(plan)
        self._take(plan, measured=False)
        tf.distribute.Strategy.__init__(self, StrategyExtended(self))
        self._cut_into(plan)

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas; a micro-batch is one."""
        return self.extended._num_replicas_in_sync

    def run(
        self,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call a function once for each replica, on its part of the batch.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.
            options: Not used.

        Returns:
            One value per replica, in a nest like what the function returns.
        """
        return tf.distribute.Strategy.run(self, fn, args=args, kwargs=kwargs, options=options)

    _tf_private.leave_to_autograph(run)

    @property
    def loop_state(self) -> LoopState:
        """What custom loops keep from run to run."""
        return self._loop_state

    @tf.autograph.experimental.do_not_convert
    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Reduce a value over the replicas, and over an axis of it.

        Args:
            reduce_op: ``"SUM"`` or ``"MEAN"``. A mean of what ``run`` has returned counts every
                replica by its samples.
            value: A value per replica, or a nest of them.
            axis: The axis, such as 0 for the batch, or None.

        Returns:
            One value, or a nest of values, on the device of now.

        Raises:
            EngineError: ENG-063 if what is no replica's own is to be added up.
        """
        # Over an axis, TensorFlow runs the replicas: eagerly too, which is no fault of anyone's.
        with self._loop_state.quiet():
            return tf.distribute.Strategy.reduce(self, reduce_op, value, axis)

    def replan(self, plan: Plan) -> None:
        """Use a plan that differs in its micro-batches alone; steps have to be made anew."""
        self._plan = plan
        self._cut_into(plan)

    def _cut_into(self, plan: Plan) -> None:
        if plan.is_cut:
            install_stages()
        devices = [plan.replicas[piece.replica].stages[0].device for piece in pieces_of(plan)]
        self._piece_devices = tuple(map(tf_device, devices))
        self._loop_state = LoopState(self._piece_devices)

    def gather(self, value: Any, axis: int) -> Any:
        """Return the values of all replicas, joined along an axis; outside of replicas only."""
        return tf.distribute.Strategy.gather(self, value, axis)

    @property
    def piece_devices(self) -> tuple[str, ...]:
        """TensorFlow's name of the device where each piece of a batch begins."""
        return self._piece_devices


class StrategyExtended(OneWorkerExtended):
    """What TensorFlow and Keras ask a strategy behind its public face.

    Args:
        strategy: The strategy it belongs to.
    """

    def __init__(self, strategy: StagedStrategy) -> None:
        super().__init__(strategy)
        self._strategy = strategy
        self._run: Run | None = None

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> tf.Variable:
        if kwargs.get("synchronization") == tf.VariableSynchronization.NONE:
            raise EngineError(
                "ENG-070",
                f"The variable {kwargs.get('name')!r} was made with synchronization=NONE.",
                why="A variable with one owner has one value, and replicas agree on it.",
                fix="Leave synchronization out, or use ON_READ for a value of each replica's own.",
            )
        variable, made = self._strategy.ledger.create(next_creator, **kwargs)
        own(variable, self._strategy, made)
        return variable

    def update(
        self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        """Call ``fn`` on a variable, on its owner, from whichever context."""
        args, kwargs = _tf_private.select_replica(0, (tuple(args), dict(kwargs or {})))
        with tf.device(var.device):
            result = fn(var, *args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        return self.update(var, fn, args, kwargs, group)

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not self._strategy.ledger.holds(colocate_with_variable):
            raise EngineError(
                "ENG-003",
                f"The variable {colocate_with_variable.name!r} was not made in this scope.",
                why="An optimizer's state lives beside its variable, which has no owner here.",
                fix="Make the model inside `with strategy.scope():`, before the optimizer.",
            )

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[None]:
        """Let reductions know what the replicas of this run weigh."""
        before, self._run = self._run, run
        try:
            yield
        finally:
            self._run = before

    def remember_run(self, run: Run, results: Any) -> Any:
        """Let reductions of these values know in which run they were made; return them."""

        def one(value: Any) -> Any:
            if _tf_private.is_per_replica(value):
                value._evener_run = run
            return value

        return tf.nest.map_structure(one, results)

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        return runs.call_for_each_replica(self._strategy, fn, tuple(args), dict(kwargs))

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if _is_per_replica(options):
            raise EngineError(
                "ENG-069",
                "A dataset was to be distributed with one input pipeline for each replica "
                "(PER_REPLICA).",
                why="Its batches are global ones, which are cut by the shares.",
                fix="Use distribute_datasets_from_function, or leave the option out.",
            )
        return data.distribute(dataset, self._strategy)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        if _is_per_replica(options):
            return data.from_functions(dataset_fn, self._strategy)
        return data.from_function(dataset_fn, self._strategy)

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        count = self._num_replicas_in_sync
        contexts = [
            tf.distribute.experimental.ValueContext(replica, count) for replica in range(count)
        ]
        return _tf_private.regroup_or_one([value_fn(context) for context in contexts])

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        return [
            self._reduce_to(reduce_op, value, destination, options)
            for value, destination in value_destination_pairs
        ]

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if tf.nest.is_nested(value):
            return tf.nest.map_structure(
                lambda one: self._reduce_to(reduce_op, one, destinations, options), value
            )
        if not _tf_private.is_per_replica(value):
            return combine.same_everywhere(reduce_op, value, self._num_replicas_in_sync)
        where = combine.devices_of(destinations, self.worker_devices)
        run = getattr(value, "_evener_run", None) or self._run
        if self._run is not None:
            self._run.has_talked = True
        parts = _tf_private.local_values(value)
        results = combine.reduced(
            reduce_op, parts, [where] if isinstance(where, str) else where, run
        )
        return results[0] if isinstance(where, str) else _tf_private.regroup(results)

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: Any, options: Any
    ) -> Any:
        del options
        if not _tf_private.is_per_replica(value):
            return value
        where = combine.devices_of(destinations, self.worker_devices)
        parts = _tf_private.local_values(value)
        if isinstance(where, str):
            return combine.gathered(parts, where, axis, self._run)
        return _tf_private.regroup([combine.gathered(parts, one, axis, self._run) for one in where])

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        return _tf_private.local_values(value)

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """TensorFlow's names of the replicas' devices; a micro-batch is a replica to a loop."""
        return self._strategy.piece_devices

    @property
    def worker_devices_by_replica(self) -> tuple[str, ...]:
        """The devices of each replica, as `ReplicaContext.devices` gives them."""
        return self.worker_devices

    def non_slot_devices(self, var_list: Any) -> str:
        """Return the device for state that belongs to no variable."""
        del var_list
        return tf_device(HOST)

    def _update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        with tf.device(colocate_with):
            result = fn(*args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        where = combine.devices_of(destinations, self.worker_devices)
        if isinstance(where, str):
            with tf.device(where):
                return tf.identity(tensor)
        copies = []
        for device in where:
            with tf.device(device):
                copies.append(tf.identity(tensor))
        return _tf_private.regroup(copies)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """TensorFlow's names of the devices that own variables."""
        return tuple(dict.fromkeys(self.worker_devices))

    @property
    def _num_replicas_in_sync(self) -> int:
        return len(self.worker_devices)


def _is_per_replica(options: Any) -> bool:
    mode = tf.distribute.InputReplicationMode.PER_REPLICA
    return options is not None and options.experimental_replication_mode == mode
