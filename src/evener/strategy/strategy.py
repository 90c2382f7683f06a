"""`evener.Strategy`: a `tf.distribute.Strategy` of one replica, which is all devices together.

A program sees one device. Keras's own ``fit``, ``evaluate`` and ``predict`` call ``run``, and so
does a custom loop; ``run`` partitions the function that it is given::

    run(fn, args) ──► step of fn (`DistributedStep`): arguments, cache of traces
                        ──► `PreparedStep`: traced, partitioned
                              ──► all devices, by the shares of the controller

evener has no training step of its own; the patches of Keras are in one list,
`evener._tf_private.models.PATCHES`.
"""

from __future__ import annotations

import functools
import gc
import linecache
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import tensorflow as tf

from evener._tf_private import functions
from evener._tf_private.models import owns_a_model, patch_keras
from evener._tf_private.tapes import tape_is_recording
from evener._tf_private.tensors import in_xla
from evener.base.user_code import is_own
from evener.devices import resolve_devices
from evener.devices.names import device_name
from evener.errors import EngineError
from evener.partition.memory import MemoryEstimate
from evener.partition.report import StepReport, warn_at_user_line
from evener.plan import BatchNormName, Plan, check_shares
from evener.strategy.distribute import DistributedStep, add_note_on_memory
from evener.strategy.one_replica import Extended, OneReplica
from evener.strategy.ownership import OwnerRegistry
from evener.strategy.plans import arrange, chosen_plan, devices_of_owners, used_devices
from evener.strategy.prepared import StepContext, run_timed
from evener.strategy.run_trial import RunTrial, TriedWay
from evener.strategy.shares import ShareController
from evener.strategy.spot_check import SpotCheck
from evener.strategy.verify import Verification, chosen_verification

# A program may fit a model outside of the scope of every one of them.
_STRATEGIES: weakref.WeakSet[Strategy] = weakref.WeakSet()

_STEPS = "_evener_steps"


class Strategy(OneReplica):
    """Strategy that trains on several devices, exactly as one device would.

    ``num_replicas_in_sync`` is 1, and batches are global batches: a program is written for one
    device. ``run(f, args)`` is one call of ``f`` on the whole batch, computed by all devices, and
    its value is a tensor. Models made in ``scope()`` run on all devices in Keras's ``fit``,
    ``evaluate`` and ``predict``. Every variable has one owner; every device computes its share of
    each batch.

    Args:
        plan: Plan with devices, owners, shares, stages and micro-batches. Excludes ``devices``,
            ``shares``, ``owners`` and ``batch_norm``. None (default): data parallel.
        devices: Device spec such as ``"gpu:0,gpu:1"`` or ``"cpu:2"``, or the names of
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
        DeviceError: DEV-001 to DEV-014, as in `evener.use_devices`, if a device does not exist or
            cannot be configured any more.
        PlanError: PLAN-007 to PLAN-011, PLAN-020 or PLAN-050 for wrong shares, PLAN-003, PLAN-019
            or PLAN-031 for wrong owners, PLAN-035 for an unknown ``batch_norm``, PLAN-051 for other
            arguments beside a plan, PLAN-053 for something else than a plan, PLAN-029 if devices of
            the plan are missing.

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
        measured = plan is None and shares is None
        plan, group = chosen_plan(
            plan, devices=devices, shares=shares, owners=owners, batch_norm=batch_norm
        )
        verify = chosen_verification(verify)
        layout, controller = arrange(plan, group, measured=measured)
        registry = OwnerRegistry(
            plan, devices_of_owners(plan), layout.own_name, all_alike=group is not None
        )
        self._own_context = StepContext(
            plan=plan, layout=layout, controller=controller, owners=registry, verify=verify
        )
        self._trial: RunTrial | None = None
        self._warned: set[str] = set()
        patch_keras(Strategy)
        super().__init__(self._extended_type(self, registry, device_name(layout.first_device)))
        self._has_run = False
        _STRATEGIES.add(self)

    @classmethod
    def one_per_device(cls, devices: str | Sequence[str] | None = None) -> tuple[Self, ...]:
        """Return one strategy for each device, for independent models.

        Each model is made in the scope of its own strategy, with its own optimizer. Call
        ``fit`` of each in a thread of its own, or ``run`` of all in one `tf.function`, and all
        devices are busy at once.

        Args:
            devices: Device spec, or names of devices, as for a strategy.

        Returns:
            Strategies of one device, in the order of the devices.

        Raises:
            DeviceError: DEV-001 to DEV-014, as in `evener.use_devices`.

        Example:
            >>> import evener
            >>> first, second = evener.Strategy.one_per_device(["cpu:0", "cpu:1"])
            >>> second.replica_devices
            ('cpu:1',)
        """
        return tuple(cls(devices=[device.name]) for device in used_devices(devices))

    @property
    def _context(self) -> StepContext:
        return self._own_context if self._trial is None else self._trial.context

    def __repr__(self) -> str:
        plan = self._context.plan
        return f"<evener.Strategy on {', '.join(plan.device_names)}: {plan.layout}>"

    def _repr_html_(self) -> str:
        return self.plan._repr_html_()

    @property
    def plan(self) -> Plan:
        """Plan, with the present shares."""
        return self._context.plan.with_shares(self.shares)

    @property
    def shares(self) -> tuple[float, ...]:
        """Fraction of every batch that each device computes; the sum is 1."""
        return self.share_controller.shares

    def set_shares(self, shares: Sequence[float]) -> None:
        """Change the shares from the next step on. Nothing is traced again.

        Args:
            shares: Shares of the devices relative to each other, 0 or more.

        Raises:
            PlanError: PLAN-007 to PLAN-011 or PLAN-020 for wrong shares.
        """
        expected = len(self.replica_devices)
        self.share_controller.assign(
            check_shares(shares, num_expected=expected, expected="replicas")
        )

    @property
    def replica_devices(self) -> tuple[str, ...]:
        """Devices that compute, one for each share."""
        return self._context.layout.devices

    def name_in_plan(self, device: str) -> str:
        """Return the name that a device of this process has in the plan.

        Args:
            device: Name such as ``"gpu:0"``; with several workers, the result is for example
                ``"worker:1/gpu:0"``.
        """
        return self._context.layout.name_in_plan(device)

    @property
    def share_controller(self) -> ShareController:
        """Controller of the shares: measured times per device, and the changes (``events``)."""
        return self._context.controller

    @property
    def owner_registry(self) -> OwnerRegistry:
        """Registry of the variables that were made in the scope, each with its owner."""
        return self._context.owners

    @property
    def num_replicas_in_sync(self) -> int:
        """1: a program sees one device, and batches are those of all devices together."""
        if len(self.replica_devices) > 1:
            caller = sys._getframe(1)
            file = caller.f_code.co_filename
            text = linecache.getline(file, caller.f_lineno) if is_own(file) else ""
            if "*" in text and "batch" in text.lower():
                self._warn_once(
                    "ENG-083",
                    "strategy.num_replicas_in_sync is 1, whatever the number of devices is.",
                    why="A program sees one device, and a batch is divided among "
                    f"{', '.join(self.replica_devices)}. A batch size that is multiplied by the "
                    "number of replicas stays what it is, and so do the results.",
                    fix=f"For a batch of that size on each device, multiply by "
                    f"{len(self.replica_devices)} instead, and adapt the learning rate.",
                )
        return 1

    def memory_estimate(self, num_samples: int) -> dict[str, MemoryEstimate]:
        """Return the peak memory of the steps so far on every device.

        Args:
            num_samples: Samples of the global batch, from 0.

        Returns:
            Estimate for every device, such as ``"gpu:0"``, in bytes: that of its largest step.

        Raises:
            EngineError: ENG-011 if no step has run yet that trains on several devices or in parts,
                ENG-100 with several workers.
        """
        context = self._context
        owned = context.owners.owned_bytes()
        return context.records.memory_estimate(self.plan.replicas, num_samples, owned)

    def report(self) -> StepReport:
        """Return the operations that were gathered in all steps so far."""
        return StepReport.merged(self._context.records.reports)

    @property
    def verifications(self) -> tuple[Verification, ...]:
        """The differences of the first run of each step from one device, with ``verify=True``."""
        return tuple(self._context.records.verifications)

    @property
    def spot_checks(self) -> tuple[SpotCheck, ...]:
        """The results of comparisons of a few samples with one device so far."""
        return tuple(self._context.records.spot_checks)

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
            fn: Function of the step, or a `tf.function`.
            args: Positional arguments: tensors of the global batch, and any other values.
            kwargs: Keyword arguments.
            options: Options of other strategies, which are ignored.

        Returns:
            Value that the function returns: tensors for the whole batch.

        Raises:
            EngineError: ENG-085 inside the scope of another strategy; ENG-084 inside of a function
                that XLA compiles.
            DataError: DATA-010 if tensors of the batch have unlike numbers of samples.
        """
        del options
        now = tf.distribute.get_strategy() if tf.distribute.has_strategy() else self
        if now is not self:
            raise EngineError(
                "ENG-085",
                "A model or a step of one strategy was run in the scope of another.",
                why="Its variables are owned by the devices of its own strategy and cannot move.",
                fix="Leave the other scope; or save the model, and load it with "
                "keras.saving.load_model in the new scope.",
            )
        self._has_run = True
        args, kwargs = tuple(args), dict(kwargs or {})
        is_eager = tf.executing_eagerly()
        is_function = functions.is_traced_function(fn) and not tf.config.functions_run_eagerly()
        if not is_eager and not is_function:
            fn = functions.autographed(fn)
        if self.is_running():
            return fn(*args, **kwargs)
        # XLA takes variables of one device alone; metrics may be on the first.
        is_compiled_elsewhere = not self.is_plain and functions.is_compiled(fn)
        if self.is_partitioned or is_compiled_elsewhere:
            if in_xla(tf.compat.v1.get_default_graph()):
                raise EngineError(
                    "ENG-084",
                    "strategy.run was called inside of a function that XLA compiles.",
                    why="XLA compiles a function for one device, and the variables and the work of "
                    f"this strategy are on {', '.join(self._context.plan.device_names)}.",
                    fix="Leave out jit_compile=True where strategy.run is called.",
                )
            if is_eager and not is_function:
                self._warn_once(
                    "ENG-086",
                    f"A step runs eagerly, on {self.replica_devices[0]} alone.",
                    why="Only the graph of a step can be partitioned. Eager steps give the same "
                    "results, and are good for debugging, but use one device.",
                    fix="Call strategy.run from inside a @tf.function, or give it one; leave out "
                    "run_functions_eagerly(True), run_eagerly=True, and dynamic=True of layers of "
                    "Keras 2.",
                )
            elif is_eager and self.trial is not None:
                return self.trial.run(fn, lambda _: self._step_of(fn)(*args, **kwargs))
            else:
                return self._step_of(fn)(*args, **kwargs)
        first, controller = self._context.layout.first_device, self.share_controller
        run_once = functools.partial(tf.distribute.Strategy.run, self, fn)
        with tf.device(first):
            if controller.counts and not self.is_partitioned and not is_eager:
                return run_timed(run_once, args, kwargs, device=first, recorder=controller)
            return run_once(args=args, kwargs=kwargs)

    functions.leave_to_autograph(run)

    def _step_of(self, fn: Callable[..., Any]) -> DistributedStep[..., Any]:
        """Return the step of a function; a new one for every call in a graph."""
        context, is_eager = self._context, tf.executing_eagerly()
        # Kept with the function, so that both are freed together.
        steps = vars(fn).setdefault(_STEPS, weakref.WeakKeyDictionary()) if is_eager else {}
        if context not in steps:
            body = functions.converted_as_by(fn, functions.body_of(fn)) if is_eager else fn
            run_once = functools.partial(tf.distribute.Strategy.run, self)

            @tf.autograph.experimental.do_not_convert
            def call(*args: Any, **kwargs: Any) -> Any:
                return run_once(body, args=args, kwargs=kwargs)

            program = fn if is_eager else None
            steps[context] = self._step_type(call, context, program=program, named_after=body)
        return steps[context]

    @property
    def has_run(self) -> bool:
        """Whether a step has run."""
        return self._has_run

    @property
    def is_partitioned(self) -> bool:
        """Whether there is more than one device, or more than one part in time."""
        is_divided = len(self.replica_devices) > 1 or self._context.layout.is_scheduled
        # A plan that was tried stays what was measured.
        return is_divided or self._trial is not None

    @property
    def is_plain(self) -> bool:
        """Whether a step runs as without a strategy: as a whole, on TensorFlow's first device."""
        return not self.is_partitioned and self.replica_devices[0] in ("cpu:0", "gpu:0")

    def try_plans(
        self,
        plans: Sequence[Plan],
        tell: Callable[[str], object],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Try plans in steps of the training to come, and keep the fastest; before the first step.

        Variables stay with the owners that the plan of the strategy gives them. Where Keras leaves
        it to the machine whether XLA compiles a step, the plan of the strategy is tried without XLA
        too.

        Args:
            plans: Plans of this process from the simplest to the least simple; the plan of the
                strategy is among them.
            tell: Function that is called with the result, a line.
            clock: Clock in seconds.

        Raises:
            DeviceError: If a device of the plans does not exist.
        """
        for plan in plans:
            resolve_devices(plan.device_names)
        own = self._own_context
        ways = (*map(TriedWay, plans), TriedWay(own.plan, by_xla=False))
        self._trial = RunTrial(ways, own, start=plans.index(own.plan), tell=tell, clock=clock)

    @property
    def trial(self) -> RunTrial | None:
        """Trial of plans that is not over yet; None if there is none."""
        return None if self._trial is None or self._trial.choice.is_over else self._trial

    def runs_by(self, plan: Plan | None, *, by_xla: bool = True) -> bool:
        """Return whether steps run by a plan, whatever its shares are by now.

        Args:
            plan: The plan.
            by_xla: Whether XLA compiles what is to be compiled.
        """
        return plan is self._context.plan and by_xla is self._context.layout.by_xla

    @classmethod
    def _owning(cls, variables: Sequence[tf.Variable]) -> Strategy | None:
        """Return the strategy in whose scope one of some variables was made, or None."""
        owners = (s for s in tuple(_STRATEGIES) if any(map(s.owner_registry.holds, variables)))
        return next(owners, None)

    def _run_compiled(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a `tf.function` that XLA cannot compile, since its variables are on other devices."""
        if not tape_is_recording():
            return self.run(fn, args=args, kwargs=kwargs)
        raise EngineError(
            "ENG-092",
            "A function with jit_compile=True is differentiated from outside, and its variables "
            f"are on {', '.join(self._context.plan.device_names)}.",
            why="XLA compiles a function for one device, and a tape outside of it cannot "
            "differentiate the parts.",
            fix="Take the gradient inside the function, or leave out jit_compile=True.",
        )

    def _explain_exhausted_memory(self, error: tf.errors.ResourceExhaustedError) -> None:
        """Add the note ENG-050 to an error of exhausted memory: shares, owned bytes, remedies."""
        owned_bytes = self.owner_registry.owned_bytes()
        add_note_on_memory(error, self._context, owned_bytes, self.report().gathered)

    @classmethod
    def _warn_about_unused_strategies(cls, name: str) -> None:
        """Warn that a model without a strategy trains on one device: ENG-088."""

        def is_unused(strategy: Strategy) -> bool:
            """Return whether it has run nothing on several devices, and has not warned of that."""
            if not strategy.is_partitioned or strategy._has_run:
                return False
            return "ENG-088" not in strategy._warned and not owns_a_model(strategy)

        # A strategy that the program has dropped is part of reference cycles.
        if any(map(is_unused, tuple(_STRATEGIES))):
            gc.collect()
        for strategy in filter(is_unused, tuple(_STRATEGIES)):
            strategy._warn_once(
                "ENG-088",
                f"The model {name!r} trains on one device, and nothing uses the strategy on "
                f"{', '.join(strategy._context.plan.device_names)}.",
                why="It was created, and is fitted, outside of strategy.scope().",
                fix="Create the model inside `with strategy.scope():`, or call fit inside it.",
            )

    def _warn_once(self, code: str, what: str, *, why: str, fix: str) -> None:
        if code not in self._warned:
            self._warned.add(code)
            warn_at_user_line(code, what, why=why, fix=fix)
