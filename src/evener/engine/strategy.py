"""`evener.Strategy`: a `tf.distribute.Strategy` whose variables have one owner each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.devices import UsedDevice, resolve_devices, use_devices
from evener.engine.loops import combine, data
from evener.engine.loops import run as runs
from evener.engine.loops.install import install_stages
from evener.engine.loops.run import Run
from evener.engine.loops.variables import LoopState, own
from evener.engine.ownership import Ledger, tf_device
from evener.engine.pieces import pieces_of
from evener.engine.sharing import Sharing
from evener.errors import DeviceError, EngineError, PlanError
from evener.plan import OwnerRule, Plan, PlanDevice, check_shares

HOST = "cpu:0"


class Strategy(tf.distribute.Strategy):
    """Trains Keras models on several devices, exactly as one device would.

    Models made and compiled in ``scope()`` run on all devices in ``fit``, ``evaluate``,
    ``predict`` and their ``_on_batch`` siblings; custom loops in ``run``, with what
    ``experimental_distribute_dataset`` yields. Every variable has one owner; every device
    computes its share of each batch.

    Args:
        plan: What runs where. Excludes the other arguments.
        devices: A device spec such as ``"gpu:0,gpu:1"`` or ``"cpu:2"``, or the names of
            devices. Default: ``EVENER_DEVICES``, else all usable GPUs.
        shares: Relative shares of each batch, one per device, in samples or fractions;
            ``"even"``; or None (default): even at first, then evened while training by the
            measured time of each device.
        owners: ``"sharded"`` (default) spreads variables over the devices by bytes,
            ``"central"`` keeps them on the host, a mapping gives patterns of variable paths
            and their devices, first match first.

    Raises:
        DeviceError: If a device does not exist or cannot be configured any more.
        PlanError: If shares or plan do not fit the devices.

    Example:
        >>> import evener, keras
        >>> strategy = evener.Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> strategy.shares
        (0.75, 0.25)
    """

    def __init__(
        self,
        plan: Plan | None = None,
        *,
        devices: str | Sequence[str] | None = None,
        shares: str | Sequence[float] | None = None,
        owners: str | Mapping[str, str] | None = None,
    ) -> None:
        if plan is None:
            used = _use(devices)
            plan = _plan_for(used, shares, owners)
            measured = shares is None
        else:
            _refuse_with_plan(devices=devices, shares=shares, owners=owners)
            _use_devices_of(plan)
            measured = False
        self._plan = plan
        names = [replica.stages[0].device for replica in plan.replicas]
        self._replica_devices = tuple(names)
        self._ledger = Ledger(plan, [d.name for d in plan.devices], HOST)
        self._sharing = Sharing(
            names, [replica.share for replica in plan.replicas], measured=measured
        )
        super().__init__(StrategyExtended(self))
        self._cut_into(plan)

    @classmethod
    def one_per_device(cls, devices: str | Sequence[str] | None = None) -> tuple[Strategy, ...]:
        """Return one strategy for each device, for models that have nothing to do with another.

        Each model is made in the scope of its own strategy, with its own optimizer. Call
        ``fit`` of each in a thread of its own, or ``run`` of all in one `tf.function`, and all
        devices are busy at once.

        Args:
            devices: As for a strategy.

        Returns:
            Strategies of one device, in the order of the devices.

        Raises:
            DeviceError: If a device does not exist or cannot be configured any more.

        Example:
            >>> import evener
            >>> one, other = evener.Strategy.one_per_device(["cpu:0", "cpu:1"])
            >>> other.replica_devices
            ('cpu:1',)
        """
        return tuple(cls(devices=[device.name]) for device in _use(devices))

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
            return super().reduce(reduce_op, value, axis)

    @property
    def plan(self) -> Plan:
        """The plan, with the shares of this moment."""
        return self._plan.with_shares(self.shares)

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of every batch that each replica computes; sums to 1."""
        return self._sharing.shares

    def set_shares(self, shares: Sequence[float]) -> None:
        """Change the shares from the next step on. Nothing is traced again.

        Args:
            shares: One number per replica, relative to each other.

        Raises:
            PlanError: If a share is negative, all are 0, or their number is wrong.
        """
        self._sharing.assign(
            check_shares(shares, num_expected=len(self._replica_devices), expected="replicas")
        )

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

    @property
    def piece_devices(self) -> tuple[str, ...]:
        """TensorFlow's name of the device where each piece of a batch begins."""
        return self._piece_devices

    @property
    def replica_devices(self) -> tuple[str, ...]:
        """The device of each replica."""
        return self._replica_devices

    @property
    def sharing(self) -> Sharing:
        """The shares with what was measured: times per replica and the log of changes."""
        return self._sharing

    @property
    def ledger(self) -> Ledger:
        """Every variable made in the scope, with its owner."""
        return self._ledger


class StrategyExtended(tf.compat.v1.distribute.StrategyExtended):
    """What TensorFlow and Keras ask a strategy behind its public face.

    Args:
        strategy: The strategy it belongs to.
    """

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)
        self._strategy = strategy
        self._live: list[tf.Tensor] | None = None
        self._run: Run | None = None

    @contextlib.contextmanager
    def counting(self, live: list[tf.Tensor]) -> Iterator[None]:
        """Let replicas without samples neither give nor get anything in a reduction.

        They compute with a sample that does not count, which must not enter the statistics
        of synchronised layers; and what they get back must not lead a gradient to it.

        Args:
            live: For each replica 1 if it has samples, else 0; float32 scalars.
        """
        self._live = live
        try:
            yield
        finally:
            self._live = None

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
        if self._live is not None:
            return self._reduce_live(reduce_op, value)
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

    def _reduce_live(self, reduce_op: Any, value: Any) -> Any:
        """Reduce in the engine's own replicas, of which some may have no samples."""
        assert self._live is not None
        parts = list(_tf_private.local_values(value))
        live = self._live
        counted = [part * tf.cast(one, part.dtype) for part, one in zip(parts, live, strict=True)]
        results = []
        for device, one in zip(self.worker_devices, live, strict=True):
            with tf.device(device):
                total = tf.add_n(counted)
                if reduce_op == tf.distribute.ReduceOp.MEAN:
                    total = total / tf.cast(tf.add_n(live), total.dtype)
                results.append(total * tf.cast(one, total.dtype))
        return _tf_private.regroup(results)

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

    def value_container(self, value: Any) -> Any:
        """Return the variable that holds a component; here every variable is whole."""
        return value

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

    def read_var(self, v: Any) -> Any:
        """Return the value of a variable."""
        return v.read_value()

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


def _is_per_replica(options: Any) -> bool:
    mode = tf.distribute.InputReplicationMode.PER_REPLICA
    return options is not None and options.experimental_replication_mode == mode


def _use(devices: str | Sequence[str] | None) -> tuple[UsedDevice, ...]:
    if devices is None or isinstance(devices, str):
        return use_devices(devices)
    return resolve_devices(devices)


def _use_devices_of(plan: Plan) -> None:
    """Take the devices of a plan into use.

    Raises:
        PlanError: If the plan is for devices that this machine does not have.
    """
    try:
        resolve_devices(plan.device_names)
    except DeviceError:
        plan.check_devices([device.name for device in use_devices(None)])
        raise


def _plan_for(
    used: Sequence[UsedDevice],
    shares: str | Sequence[float] | None,
    owners: str | Mapping[str, str] | None,
) -> Plan:
    if isinstance(shares, str):
        if shares != "even":
            raise PlanError(
                "PLAN-050",
                f"shares={shares!r} is not known.",
                why="Shares are numbers, 'even', or None to have them measured.",
                fix="Write shares='even' or for example shares=[320, 192].",
            )
        shares = None
    rules: Any = owners or "sharded"
    if isinstance(rules, Mapping):
        rules = tuple(OwnerRule(pattern=p, device=d) for p, d in rules.items())
    devices = [PlanDevice(name=d.name, kind=d.kind, memory_bytes=d.memory_bytes) for d in used]
    return Plan.data_parallel(devices, shares=shares, owners=rules)


def _refuse_with_plan(**others: Any) -> None:
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise PlanError(
            "PLAN-051",
            f"A plan was given together with {', '.join(given)}.",
            why="The plan already says which devices, shares and owners there are.",
            fix="Change the plan, for example with plan.with_shares([...]), or leave it out.",
        )
