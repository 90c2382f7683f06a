"""`evener.Strategy`: a `tf.distribute.Strategy` of one replica, which is all devices together.

A program sees one device. Keras's own ``fit``, ``evaluate`` and ``predict`` call ``run``, and so
does a loop of one's own; ``run`` partitions what it is given. There is no step of ours; what is
changed in Keras stands in one list, `evener._tf_private.strategies.PATCHES`.
"""

from __future__ import annotations

import functools
import gc
import linecache
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Self

import tensorflow as tf

from evener import _tf_private
from evener._tf_private.models import owns_a_model
from evener._tf_private.strategies import patch_keras
from evener.checking.spot_check import SpotCheck
from evener.checking.verify import Verification
from evener.devices.names import tf_device
from evener.engine.memory.estimate import LiveRange, MemoryEstimate, estimate_memory, live_ranges_of
from evener.engine.origin import warn_at_user_line
from evener.engine.partition import PartitionedStep
from evener.engine.pipeline.layout import Layout
from evener.engine.report import StepReport
from evener.errors import EngineError
from evener.own_code import is_own
from evener.plan import (
    BatchNormName,
    Plan,
    check_shares,
)
from evener.strategy.distribute import DistributedStep
from evener.strategy.exhausted import add_note_on_memory
from evener.strategy.extended import Extended
from evener.strategy.ownership import OwnerRegistry
from evener.strategy.plans import (
    data_parallel_plan,
    refuse_with_plan,
    use_devices_of,
    used_devices,
)
from evener.strategy.sharing import Sharing
from evener.strategy.whole_step import run_timed

HOST = "cpu:0"
_STEPS = "_evener_steps"
# A program may fit a model outside of the scope of every one of them.
_STRATEGIES: weakref.WeakSet[Strategy] = weakref.WeakSet()


class Strategy(tf.distribute.Strategy):
    """Trains on several devices, exactly as one device would.

    ``num_replicas_in_sync`` is 1, and batches are global ones: a program is written for one
    device. ``run(f, args)`` is one call of ``f`` on the whole batch, computed by all devices, and
    its value is a tensor. Models made in ``scope()`` run on all devices in Keras's ``fit``,
    ``evaluate`` and ``predict``. Every variable has one owner; every device computes its share of
    each batch.

    Args:
        plan: What runs where. Excludes the other arguments.
        devices: A device spec such as ``"gpu:0,gpu:1"`` or ``"cpu:2"``, or the names of
            devices. Default: ``EVENER_DEVICES``, else all usable GPUs.
        shares: Relative shares of each batch, one per device, in samples or fractions;
            ``"even"``; or None (default): even at first, then rebalanced while training by the
            measured time of each device, always within the memory of each device.
        owners: ``"sharded"`` (default) spreads variables over the devices by bytes,
            ``"central"`` keeps them on the host, a mapping gives patterns of variable paths
            and their devices, first match first.
        batch_norm: ``"synchronized"`` (default): BatchNormalization takes its statistics of the
            whole batch, as on one device. ``"per_device"``: of the samples of each device, which is
            cheaper; results are not those of one device.
        verify: None (default): a few samples of the first batch of every step are computed in
            parts and as a whole on the host, beside the run, and a difference is warned of
            (ENG-089). True: the first run of every step is also computed on one device, and the
            difference printed; the state of the step has to fit on that device three times.
            False: neither.

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

    _step_type: type[DistributedStep[Any, Any]] = DistributedStep
    _extended_type: type[Extended] = Extended

    def __init__(
        self,
        plan: Plan | None = None,
        *,
        devices: str | Sequence[str] | None = None,
        shares: str | Sequence[float] | None = None,
        owners: str | Mapping[str, str] | None = None,
        batch_norm: BatchNormName | None = None,
        verify: bool | None = None,
    ) -> None:
        measured = False
        if plan is None:
            plan = data_parallel_plan(used_devices(devices), shares, owners, batch_norm)
            measured = shares is None
        else:
            refuse_with_plan(devices=devices, shares=shares, owners=owners, batch_norm=batch_norm)
            use_devices_of(plan)
        self._plan = plan
        self._layout = Layout.of(plan)
        self._reports: list[StepReport] = []
        self._live_ranges: list[list[LiveRange]] = []
        self._warned: set[str] = set()
        self._verifies = verify
        self._verifications: list[list[Verification]] = []
        self._spot_checks: list[list[SpotCheck]] = []
        self._replica_devices = self._layout.devices
        self._sharing = Sharing(
            self._replica_devices,
            plan.shares,
            measured=measured,
            memory_bytes=[device.memory_bytes for device in plan.devices] if measured else (),
        )
        self._owner_registry = OwnerRegistry(plan, [device.name for device in plan.devices], HOST)
        patch_keras(Strategy)
        super().__init__(self._extended_type(self))
        self._has_run = False
        _STRATEGIES.add(self)

    @classmethod
    def one_per_device(cls, devices: str | Sequence[str] | None = None) -> tuple[Self, ...]:
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
        return tuple(cls(devices=[device.name]) for device in used_devices(devices))

    def __deepcopy__(self, memo: Any) -> Self:
        """Return the strategy: the variables of a copied model are on the same devices."""
        return self

    def __reduce__(self) -> Any:
        """Refuse to be pickled.

        Raises:
            EngineError: ENG-090, always.
        """
        raise EngineError(
            "ENG-090",
            "A strategy cannot be pickled.",
            why="It holds variables and functions on the devices of this process.",
            fix="Pass on strategy.plan.to_json(), and make evener.Strategy(evener.Plan.from_json("
            "text)) where it is used; or save the model.",
        )

    @property
    def plan(self) -> Plan:
        """The plan, with the shares of this moment."""
        return self._plan.with_shares(self.shares)

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of every batch that each device computes; sums to 1."""
        return self._sharing.shares

    def set_shares(self, shares: Sequence[float]) -> None:
        """Change the shares from the next step on. Nothing is traced again.

        Args:
            shares: One number per device, relative to each other.

        Raises:
            PlanError: If a share is negative, all are 0, or their number is wrong.
        """
        expected = len(self._replica_devices)
        self._sharing.assign(check_shares(shares, num_expected=expected, expected="replicas"))

    @property
    def replica_devices(self) -> tuple[str, ...]:
        """The devices that compute, one for each share."""
        return self._replica_devices

    @property
    def sharing(self) -> Sharing:
        """The shares with what was measured: times per device and the log of changes."""
        return self._sharing

    @property
    def owner_registry(self) -> OwnerRegistry:
        """Every variable made in the scope, with its owner."""
        return self._owner_registry

    @property
    def num_replicas_in_sync(self) -> int:
        """1: a program sees one device, and batches are those of all devices together."""
        if len(self._replica_devices) > 1:
            self._warn_about_multiplied_batch(sys._getframe(1))
        return 1

    def memory_estimate(self, num_samples: int) -> dict[str, MemoryEstimate]:
        """Return what the steps so far need in the memory of every device.

        Args:
            num_samples: Samples of the global batch.

        Returns:
            For every device, such as ``"gpu:0"``, what its most demanding step needs.

        Raises:
            EngineError: ENG-011 if no step has run yet that trains on several devices or in parts.
        """
        if not self._live_ranges:
            raise EngineError(
                "ENG-011",
                "No step has been partitioned yet, so nothing is known of its memory.",
                why="The estimate is counted from the traced step of a plan with several devices, "
                "stages or micro-batches.",
                fix="Call it after a first step, such as fit on one batch.",
            )
        owned = self._owner_registry.owned_bytes()
        steps = [
            estimate_memory(one, self.plan.replicas, num_samples, owned)
            for one in self._live_ranges
        ]
        return {
            name: max((step[name] for step in steps if name in step), key=lambda one: one.total)
            for name in dict.fromkeys(name for step in steps for name in step)
        }

    def explain_exhausted_memory(self, error: tf.errors.ResourceExhaustedError) -> None:
        """Add a note to an error that says that memory ran out: ENG-050."""
        add_note_on_memory(
            error,
            devices=self._replica_devices,
            shares=self.shares,
            owned_bytes=self._owner_registry.owned_bytes(),
            gathered=self.report().gathered,
        )

    def _remember(self, step: PartitionedStep) -> None:
        """Keep what there is to know of a new step, but not the step."""
        self._reports.append(StepReport.of([step]))
        self._live_ranges.append(live_ranges_of(step))

    def report(self) -> StepReport:
        """Return what was gathered in all steps so far."""
        return StepReport.merged(self._reports)

    @property
    def verifications(self) -> tuple[Verification, ...]:
        """With ``verify=True``: how much the first run of each step differed from one device."""
        return tuple(one for step in self._verifications for one in step)

    @property
    def spot_checks(self) -> tuple[SpotCheck, ...]:
        """What the comparisons of a few samples with one device have found so far."""
        return tuple(one for step in self._spot_checks for one in step)

    def run(
        self,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call a function once, on the whole batch, computed by all devices.

        In a `tf.function`, or with a `tf.function`, the call is partitioned. A plain function that
        is called eagerly runs as it is written, on the first device.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.
            options: Not used.

        Returns:
            What the function returns.

        Raises:
            EngineError: ENG-085 inside the scope of another strategy; ENG-084 inside of a function
                that XLA compiles.
            DataError: DATA-010 if tensors of the batch have unlike numbers of samples.
        """
        del options
        self._refuse_other_scope()
        self._has_run = True
        args, kwargs = tuple(args), dict(kwargs or {})
        first = tf_device(self._replica_devices[0])
        is_function = (
            _tf_private.functions.is_traced_function(fn) and not tf.config.functions_run_eagerly()
        )
        if not tf.executing_eagerly() and not is_function:
            fn = _tf_private.autograph.autographed(fn)
        if self._is_running():
            return fn(*args, **kwargs)
        # XLA takes variables of one device alone; metrics may be on the first.
        is_compiled_elsewhere = not self.is_plain and _tf_private.functions.is_compiled(fn)
        if self.is_partitioned or is_compiled_elsewhere:
            if _tf_private.devices.in_xla(tf.compat.v1.get_default_graph()):
                self._refuse_xla()
            elif tf.executing_eagerly() and not is_function:
                self._warn_about_eager_run()
            else:
                return self._step_for(fn)(*args, **kwargs)
        with tf.device(first):
            run_once = functools.partial(tf.distribute.Strategy.run, self, fn)
            if self._sharing.counts and not self.is_partitioned and not tf.executing_eagerly():
                return run_timed(run_once, args, kwargs, device=first, recorder=self._sharing)
            return run_once(args=args, kwargs=kwargs)

    _tf_private.autograph.leave_to_autograph(run)

    @tf.autograph.experimental.do_not_convert
    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Return a value, or its sum or mean along an axis; inside of ``run`` too.

        Args:
            reduce_op: ``"SUM"`` or ``"MEAN"``.
            value: A tensor, or a nest of them.
            axis: The axis, such as 0 for the batch, or None for the value as it is.
        """
        if not self._is_running():
            return super().reduce(reduce_op, value, axis)
        name = getattr(reduce_op, "value", reduce_op).upper()
        along = {"SUM": tf.reduce_sum, "MEAN": tf.reduce_mean}[name]
        return tf.nest.map_structure(lambda one: one if axis is None else along(one, axis), value)

    @tf.autograph.experimental.do_not_convert
    def gather(self, value: Any, axis: int) -> Any:
        """Return a value, which is that of all devices; inside of ``run`` too.

        Args:
            value: A tensor.
            axis: The axis along which values of several replicas would be joined.
        """
        return value if self._is_running() else super().gather(value, axis)

    @property
    def is_partitioned(self) -> bool:
        """Whether there is more than one device, or more than one part in time."""
        return len(self._replica_devices) > 1 or self._layout.is_scheduled

    @property
    def is_plain(self) -> bool:
        """Whether a step runs as without a strategy: as a whole, on TensorFlow's first device."""
        return not self.is_partitioned and self._replica_devices[0] in ("cpu:0", "gpu:0")

    @classmethod
    def owning(cls, variables: Sequence[tf.Variable]) -> Strategy | None:
        """Return the strategy in whose scope one of some variables was made, or None."""
        return next(
            (
                strategy
                for strategy in tuple(_STRATEGIES)
                if any(map(strategy.owner_registry.holds, variables))
            ),
            None,
        )

    def run_compiled(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a function that XLA cannot compile, since its variables are on other devices.

        Args:
            fn: A `tf.function`; XLA compiles its parts.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Raises:
            EngineError: ENG-092 while a tape records, which cannot differentiate parts.
        """
        if not _tf_private.tapes.tape_is_recording():
            return self.run(fn, args=args, kwargs=kwargs)
        devices = ", ".join(self._plan.device_names)
        raise EngineError(
            "ENG-092",
            "A function with jit_compile=True is differentiated from outside, and its variables "
            f"are on {devices}.",
            why="XLA compiles a function for one device, and a tape outside of it cannot "
            "differentiate the parts.",
            fix="Take the gradient inside the function, or leave out jit_compile=True.",
        )

    def _is_running(self) -> bool:
        """Return whether this code is part of a call of ``run``."""
        is_here = tf.distribute.has_strategy() and tf.distribute.get_strategy() is self
        return is_here and not tf.distribute.in_cross_replica_context()

    def _step_for(self, fn: Callable[..., Any]) -> DistributedStep:
        if not tf.executing_eagerly():
            return self._distributed(fn)
        # Kept with the function, so that both are freed together.
        steps = vars(fn).setdefault(_STEPS, weakref.WeakKeyDictionary())
        if self not in steps:
            converted = _tf_private.autograph.autographed_always(_tf_private.functions.body_of(fn))
            steps[self] = self._distributed(converted, signature=fn)
        return steps[self]

    def _distributed(
        self, fn: Callable[..., Any], signature: Callable[..., Any] | None = None
    ) -> DistributedStep:
        run_once = super().run

        @tf.autograph.experimental.do_not_convert
        def call(*args: Any, **kwargs: Any) -> Any:
            return run_once(fn, args=args, kwargs=kwargs)

        step = self._step_type(
            call,
            layout=self._layout,
            shares=self._sharing.shares,
            sharing=self._sharing,
            signature=getattr(signature, "input_signature", None),
            owned_bytes=self._owner_registry.owned_bytes,
            when_traced=self._remember,
            paths=lambda: [variable.path for variable in self._owner_registry.variables],
            verify=self._verifies,
        )
        self._verifications.append(step.verifications)
        self._spot_checks.append(step.spot_checks)
        return step

    def _refuse_other_scope(self) -> None:
        now = tf.distribute.get_strategy() if tf.distribute.has_strategy() else self
        if now is not self:
            raise EngineError(
                "ENG-085",
                "A model or a step of one strategy was run in the scope of another.",
                why="Its variables are owned by the devices of its own strategy and cannot move.",
                fix="Leave the other scope; or save the model, and load it with "
                "keras.saving.load_model in the new scope.",
            )

    def _warn_once(self, code: str, what: str, *, why: str, fix: str) -> None:
        if code not in self._warned:
            self._warned.add(code)
            warn_at_user_line(code, what, why=why, fix=fix)

    @classmethod
    def warn_about_unused_strategies(cls, name: str) -> None:
        """Warn that a model trains on one device while a strategy is not used: ENG-088.

        Args:
            name: Of a model without a strategy, which begins to train.
        """
        if not any(strategy._is_unused() for strategy in tuple(_STRATEGIES)):
            return
        # A strategy that the program has dropped is part of reference cycles.
        gc.collect()
        for strategy in tuple(_STRATEGIES):
            if strategy._is_unused():
                devices = ", ".join(strategy._plan.device_names)
                strategy._warn_once(
                    "ENG-088",
                    f"The model {name!r} trains on one device, and nothing uses the strategy on "
                    f"{devices}.",
                    why="It was created, and is fitted, outside of strategy.scope().",
                    fix="Create the model inside `with strategy.scope():`, or call fit inside it.",
                )

    def _is_unused(self) -> bool:
        """Whether it should divide something, has not, and has not warned of it."""
        is_idle = self.is_partitioned and not self._has_run and "ENG-088" not in self._warned
        return is_idle and not owns_a_model(self)

    def _refuse_xla(self) -> None:
        raise EngineError(
            "ENG-084",
            "strategy.run was called inside of a function that XLA compiles.",
            why="XLA compiles a function for one device, and the variables and the work of this "
            f"strategy are on {', '.join(self._plan.device_names)}.",
            fix="Leave out jit_compile=True where strategy.run is called.",
        )

    def _warn_about_eager_run(self) -> None:
        self._warn_once(
            "ENG-086",
            f"A step runs eagerly, on {self._replica_devices[0]} alone.",
            why="Only the graph of a step can be partitioned. Eager steps give the same results, "
            "and are good for debugging, but use one device.",
            fix="Call strategy.run from inside a @tf.function, or give it one; leave out "
            "run_functions_eagerly(True) and run_eagerly=True.",
        )

    def _warn_about_multiplied_batch(self, caller: FrameType) -> None:
        """Say once what the number means to a line that multiplies by it."""
        file = caller.f_code.co_filename
        text = linecache.getline(file, caller.f_lineno) if is_own(file) else ""
        if "*" in text and "batch" in text.lower():
            self._warn_once(
                "ENG-083",
                "strategy.num_replicas_in_sync is 1, whatever the number of devices is.",
                why="A program sees one device, and a batch is divided among "
                f"{', '.join(self._replica_devices)}. A batch size that is multiplied by the "
                "number of replicas stays what it is, and so do the results.",
                fix=f"For a batch of that size on each device, multiply by "
                f"{len(self._replica_devices)} instead, and adapt the learning rate.",
            )
