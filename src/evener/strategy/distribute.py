"""`evener.distribute`: a step that is written for one device, on all devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import tensorflow as tf

from evener import _tf_private
from evener._tf_private.datasets import running_bodies
from evener._tf_private.shapes import noticing_unknown_sizes
from evener.checking.spot_check import SpotCheck
from evener.checking.verify import Verification, Verifier, chosen_verification
from evener.devices.names import tf_device
from evener.engine.origin import warn_at_user_line
from evener.engine.partition import PartitionedStep
from evener.engine.partition.homes import HOST
from evener.engine.partition.sizes import part_sizes_in_graph
from evener.engine.pipeline.layout import Layout
from evener.engine.report import StepReport
from evener.plan import (
    BatchNormName,
    Plan,
    check_shares,
    split_batch,
)
from evener.strategy.arguments import (
    FOUND,
    Arguments,
    different_sizes,
    feeds_itself,
    has_batch,
    read_arguments,
)
from evener.strategy.exhausted import add_note_on_memory
from evener.strategy.own_loops import warn_of_one_device
from evener.strategy.plans import data_parallel_plan, refuse_with_plan, use_devices_of, used_devices
from evener.strategy.prepared import PreparedStep
from evener.strategy.sharing import Sharing

P = ParamSpec("P")
R = TypeVar("R")


@overload
def distribute(
    step: Callable[P, R],
    *,
    plan: Plan | None = None,
    devices: str | Sequence[str] | None = None,
    shares: str | Sequence[float] | None = None,
    in_axes: Any = FOUND,
    batch_norm: BatchNormName | None = None,
    verify: bool | None = None,
) -> DistributedStep[P, R]: ...


@overload
def distribute(
    step: None = None,
    *,
    plan: Plan | None = None,
    devices: str | Sequence[str] | None = None,
    shares: str | Sequence[float] | None = None,
    in_axes: Any = FOUND,
    batch_norm: BatchNormName | None = None,
    verify: bool | None = None,
) -> Callable[[Callable[P, R]], DistributedStep[P, R]]: ...


def distribute(
    step: Callable[..., Any] | None = None,
    *,
    plan: Plan | None = None,
    devices: str | Sequence[str] | None = None,
    shares: str | Sequence[float] | None = None,
    in_axes: Any = FOUND,
    batch_norm: BatchNormName | None = None,
    verify: bool | None = None,
) -> Any:
    """Run a step on all devices, with the results that one device gives.

    The step is traced once, as it is, on the global batch. Its graph is partitioned over the
    devices along the batch: what is computed sample by sample runs on the device of the sample,
    sums over samples are added up, and what mixes samples in another way is gathered and computed
    once.

    Args:
        step: Any function that `tf.function` can trace, written for one device. Without it, a
            decorator is returned.
        plan: What runs where: stages, micro-batches, shares. Excludes devices and shares. The
            variables of the step stay where they are made.
        devices: A device spec such as ``"gpu:0,gpu:1"`` or ``"cpu:2"``, or names of devices.
            Default: ``EVENER_DEVICES``, else all usable GPUs.
        shares: Relative shares of each batch, one per device; ``"even"``; or None (default): even
            at first, within the memory of each device, then rebalanced by the measured time of
            each device in steps that train.
        in_axes: Which axis of each argument counts samples, as in ``jax.vmap``: an axis, None for
            an argument that is not part of the batch, or a nest of them. Default: axis 0 of all
            tensors whose first size is that of the largest tensor. It is a matter of speed and
            cannot change a result.
        batch_norm: ``"synchronized"`` (default) or ``"per_device"``, as in `evener.Plan`.
        verify: None (default): a few samples of the first batch are computed in parts and as a
            whole on the host, beside the run, and a difference is warned of (ENG-089). True: the
            first run of the step, for each kind of arguments, is also computed on one device, and
            the difference printed on standard error; the state of the step has to fit on that
            device three times. False: neither.

    Returns:
        A `DistributedStep`, which is called as the step is.

    Raises:
        DeviceError: If a device does not exist or cannot be configured any more.
        PlanError: If the shares do not fit the devices, or the plan does not fit the machine.

    Example:
        >>> import evener, tensorflow as tf
        >>> weight = tf.Variable(2.0)
        >>> @evener.distribute(devices=["cpu:0", "cpu:1"], shares=[3, 1])
        ... def step(x):
        ...     loss = tf.sqrt(tf.reduce_mean(tf.square(weight * x)))
        ...     weight.assign_sub(0.5 * loss)
        ...     return loss
        >>> float(step(tf.constant([1.0, 1.0, 1.0, 5.0])))
        5.291...
    """
    if step is None:
        return functools.partial(
            distribute,
            plan=plan,
            devices=devices,
            shares=shares,
            in_axes=in_axes,
            batch_norm=batch_norm,
            verify=verify,
        )
    sharing = None
    if plan is None:
        plan = data_parallel_plan(used_devices(devices), shares, None, batch_norm)
        if shares is None and len(plan.devices) > 1:
            memory_bytes = [device.memory_bytes for device in plan.devices]
            sharing = Sharing(
                plan.device_names, plan.shares, measured=True, memory_bytes=memory_bytes
            )
    else:
        refuse_with_plan(devices=devices, shares=shares, batch_norm=batch_norm)
        use_devices_of(plan)
    return DistributedStep(
        step,
        layout=Layout.of(plan),
        shares=plan.shares,
        sharing=sharing,
        in_axes=in_axes,
        verify=verify,
    )


class DistributedStep(Generic[P, R]):
    """A step on several devices. Made by `evener.distribute`.

    Args:
        step: The step.
        layout: The devices, stages and micro-batches of each replica.
        shares: One per replica.
        in_axes: See `evener.distribute`.
        verify: See `evener.distribute`.
        sharing: Shares that can change between the runs of a graph, and take the times of the
            devices; None for shares of the step's own.
        signature: The input signature, if the step is not the `tf.function` that has it.
        owned_bytes: Returns the bytes of all variables on each device, such as ``"gpu:0"``; None
            for those of the step alone.
        when_traced: Called with every partitioned step that is made.
        paths: Returns the paths of the variables of the program, whose layers a plan may name.
    """

    def __init__(
        self,
        step: Callable[P, R],
        *,
        layout: Layout,
        shares: Sequence[float],
        in_axes: Any = FOUND,
        verify: bool | None = None,
        sharing: Sharing | None = None,
        signature: Sequence[Any] | None = None,
        owned_bytes: Callable[[], Mapping[str, int]] | None = None,
        when_traced: Callable[[PartitionedStep], Any] | None = None,
        paths: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._layout = layout
        self._paths = paths
        self._step = _tf_private.functions.body_of(step)
        self._signature = signature or getattr(step, "input_signature", None)
        functools.update_wrapper(self, self._step, updated=())
        self._names = layout.devices
        self._devices = [tf_device(name) for name in layout.devices]
        self._in_axes = in_axes
        self._sharing = sharing
        self._owned_bytes = owned_bytes
        self._when_traced = when_traced
        self._verifies = chosen_verification(verify)
        self.verifications: list[Verification] = []
        self.spot_checks: list[SpotCheck] = []
        self._traces: dict[Any, PreparedStep] = {}
        self._needs_sizes: set[Any] = set()
        self._bodies: list[DistributedStep[..., Any]] = []
        self._has_looped = False
        self._shares = check_shares(shares, num_expected=len(self._names))

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices."""
        return self._names

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of every batch that each device computes; sums to 1."""
        shares = self._current_shares()
        return tuple(share / sum(shares) for share in shares)

    def set_shares(self, shares: Sequence[float]) -> None:
        """Change the shares from the next step on. Nothing is traced again.

        Args:
            shares: One number per device, relative to each other.

        Raises:
            PlanError: If a share is negative, all are 0, or their number is wrong.
        """
        self._shares = check_shares(shares, num_expected=len(self._names))
        if self._sharing is not None:
            self._sharing.assign(self._shares)

    def report(self) -> StepReport:
        """Return what was gathered in all traces of the step so far."""
        return StepReport.of(self.partitioned_steps)

    @property
    def partitioned_steps(self) -> list[PartitionedStep]:
        """The step, or the bodies of its loops, partitioned for each kind of arguments so far."""
        own = [trace.partitioned for trace in self._traces.values()]
        return own + [inner for body in self._bodies for inner in body.partitioned_steps]

    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step.

        Raises:
            DataError: DATA-010 to DATA-012 if the arguments do not fit ``in_axes``.
        """
        return self._call(_by_signature(self._signature, args), kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._takes_its_batches((args, kwargs)):
            return self._call_with_loops(args, kwargs)
        in_axes = self._in_axes
        if not (isinstance(in_axes, str) and in_axes == FOUND):
            in_axes = (in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args), {})
            if kwargs:
                in_axes = (in_axes[0], dict.fromkeys(kwargs))
        arguments = read_arguments((args, kwargs), in_axes)
        num_samples = arguments.num_samples
        is_recorded = _tf_private.tapes.tape_is_recording()
        if is_recorded:
            _warn_of_tape()
        if is_recorded or (tf.executing_eagerly() and tf.config.functions_run_eagerly()):
            with tf.device(self._devices[0]):
                return self._step(*args, **kwargs)
        trace = self._trace_for(arguments)
        if not tf.executing_eagerly():
            sizes = self._sizes_in_graph(arguments.tensors, trace)
            return trace.inline(arguments.tensors, sizes, num_samples)
        if num_samples == 0:
            # No device has a sample; kernels that need some would fail on all of them.
            return trace.plain(arguments.tensors, self._devices[0])
        if num_samples is None:
            sizes = self._sizes_without_batch(trace)
        else:
            if self._sharing is not None:
                self._sharing.limit_for(num_samples, trace.memory_limits)
            sizes = list(split_batch(num_samples, self._current_shares()))
        try:
            return trace(arguments.tensors, sizes)
        except tf.errors.ResourceExhaustedError as error:
            add_note_on_memory(
                error,
                devices=self._names,
                shares=self.shares,
                owned_bytes=trace.owned_bytes(),
                gathered=self.report().gathered,
            )
            raise

    def _takes_its_batches(self, arguments: Any) -> bool:
        """Return whether a step is given no batch, but may loop over data."""
        if _tf_private.tapes.tape_is_recording():
            return False
        if not tf.executing_eagerly():
            return feeds_itself(arguments)
        is_alone = not tf.nest.flatten(arguments)
        return (is_alone or feeds_itself(arguments)) and not tf.config.functions_run_eagerly()

    def _call_with_loops(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a step that takes its batches itself: the bodies of its loops are partitioned."""
        if self._sharing is None:
            # A graph of several steps reads the shares in each of them.
            self._sharing = Sharing(self._names, self._shares, measured=False)
        with running_bodies(self._run_body):
            results = self._function(*args, **kwargs)
        if not self._has_looped:
            self._has_looped = True
            bodies = (one for body in self._bodies for one in body.partitioned_steps)
            warn_of_one_device(self._function, args, kwargs, bodies, self._names)
        return results

    @functools.cached_property
    def _function(self) -> Any:
        """The step as it is written, traced."""
        return tf.function(self._step)

    def _run_body(self, body: Callable[[Any], Any], batch: Any) -> Any:
        if not has_batch(batch):
            return body(batch)
        make: Any = type(self)
        step: DistributedStep[..., Any] = make(
            body,
            layout=self._layout,
            shares=self._shares,
            sharing=self._sharing,
            owned_bytes=self._owned_bytes,
            when_traced=self._when_traced,
            paths=self._paths,
            verify=self._verifies,
        )
        step.verifications = self.verifications
        self._bodies.append(step)
        return step(batch)

    def _current_shares(self) -> Sequence[float]:
        return self._shares if self._sharing is None else self._sharing.shares

    def _sizes_in_graph(self, tensors: Sequence[Any], trace: PreparedStep) -> tf.Tensor:
        pairs = zip(tensors, trace.batch_axes, strict=True)
        counts = [tf.shape(tensor)[axis] for tensor, axis in pairs if axis is not None]
        if not counts:
            return self._sizes_in_graph_without_batch(trace)
        equal = [[tf.shape(tensors[k])[0] for k in indices] for indices in trace.equal_sizes]
        with tf.device(HOST), tf.control_dependencies(_checks_of_equal(equal or [counts])):
            count = tf.identity(counts[0])
            sharing = self._sharing
            limits = trace.memory_limits
            shares = self._shares if sharing is None else sharing.shares_in_graph(count, limits)
            return part_sizes_in_graph(count, shares)

    def _sizes_without_batch(self, trace: PreparedStep) -> list[int]:
        """Return in which proportions a step without samples splits the rows that it draws."""
        rows = trace.rows_without_batch
        if rows == 1:
            return [1, *[0] * (len(self._devices) - 1)]
        return list(split_batch(rows, self._current_shares()))

    def _sizes_in_graph_without_batch(self, trace: PreparedStep) -> tf.Tensor:
        if trace.rows_without_batch == 1 or self._sharing is None:
            return tf.constant(self._sizes_without_batch(trace))
        with tf.device(HOST):
            count = tf.constant(trace.rows_without_batch)
            return part_sizes_in_graph(count, self._sharing.shares_in_graph(count, None))

    def _trace_for(self, arguments: Arguments) -> PreparedStep:
        key = arguments.key()
        trace = self._traces.get(key)
        specs = _specs(arguments, None if trace is None else trace.specs)
        if trace is not None and trace.serves(specs):
            return trace
        fixed = (key, arguments.num_samples)
        if fixed in self._traces and self._traces[fixed].serves(_fixed_specs(arguments)):
            return self._traces[fixed]
        is_known = arguments.num_samples is not None
        symbolic: Exception | None = None
        if not (is_known and key in self._needs_sizes):
            try:
                with noticing_unknown_sizes() as sizes:
                    trace = self._trace(arguments, specs)
                # Of a function that is traced again for another size, each trace draws its own
                # numbers.
                is_traced_again = self._signature is None and trace.draws_from_seeds()
                if not (is_known and (sizes.is_asked or is_traced_again)):
                    return self._keep(key, trace)
            except Exception as error:
                if not is_known:
                    raise
                symbolic = error
        # The step asks for the number of samples while it is traced: `len(x)`, `x.shape[0]`.
        try:
            trace = self._trace(arguments, _fixed_specs(arguments), arguments.num_samples)
        except Exception as error:
            raise error from symbolic
        self._needs_sizes.add(key)
        return self._keep(fixed, trace)

    def _trace(
        self,
        arguments: Arguments,
        specs: Sequence[tf.TensorSpec],
        num_samples: int | None = None,
    ) -> PreparedStep:
        return PreparedStep(
            self._step,
            arguments,
            specs,
            self._layout,
            num_samples=num_samples,
            sharing=self._sharing,
            owned_bytes=self._owned_bytes,
            paths=self._paths(),
            verifier=Verifier(self.verifications.append) if self._verifies else None,
            when_checked=self.spot_checks.append if self._verifies is None else None,
        )

    def _keep(self, key: Any, trace: PreparedStep) -> PreparedStep:
        self._traces[key] = trace
        if self._when_traced is not None:
            self._when_traced(trace.partitioned)
        return trace


def _by_signature(signature: Sequence[Any] | None, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make tensors of the arguments of a `tf.function` that says what they are."""
    if signature is None:
        return args

    def one(spec: Any, value: Any) -> Any:
        is_array = isinstance(spec, tf.TensorSpec) and not isinstance(value, tf.Tensor)
        return tf.convert_to_tensor(value, spec.dtype) if is_array else value

    pairs = zip(signature, args, strict=False)
    return (*(one(spec, value) for spec, value in pairs), *args[len(signature) :])


def _checks_of_equal(sets: Iterable[Sequence[tf.Tensor]]) -> list[Any]:
    """Check while the step runs what its shapes do not say: that sizes are equal."""
    message = str(different_sizes("they differ"))
    checks = (
        tf.debugging.assert_equal(one, counts[0], message) for counts in sets for one in counts[1:]
    )
    return [check for check in checks if check is not None]


def _specs(arguments: Arguments, before: Sequence[tf.TensorSpec] | None) -> list[tf.TensorSpec]:
    """Return the specs of tensors; sizes that were others before are left open."""
    specs = []
    for index, (tensor, axis) in enumerate(zip(arguments.tensors, arguments.axes, strict=True)):
        shape = tensor.shape.as_list() if tensor.shape.rank is not None else None
        if shape is not None and axis is not None:
            shape[axis] = None
        if shape is not None and before is not None and before[index].shape.rank == len(shape):
            old = before[index].shape.as_list()
            shape = [
                size if size == known else None for size, known in zip(shape, old, strict=True)
            ]
        untyped: Any = shape
        specs.append(tf.TensorSpec(untyped, tensor.dtype))
    return specs


def _fixed_specs(arguments: Arguments) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in arguments.tensors]


def _warn_of_tape() -> None:
    warn_at_user_line(
        "ENG-081",
        "A distributed step was called while a tf.GradientTape records; it runs on one device.",
        why="The step was partitioned with its own gradients, and a tape outside of it cannot "
        "differentiate what was partitioned.",
        fix="Take the gradient inside the step, and distribute the step as a whole.",
    )
