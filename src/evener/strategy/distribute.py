"""`evener.distribute`: a step that is written for one device, on all devices.

A call reads its arguments, finds the trace that serves them, divides the batch, and runs the
trace. `tf.function` traces a function for each kind of arguments; here one trace serves many
sizes, so that it may serve several traces of the program, which keep their random streams apart.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, overload

import tensorflow as tf

from evener._tf_private.datasets import running_bodies, take_batches
from evener._tf_private.functions import (
    TracesOfProgram,
    body_of,
    converted_as_by,
    is_traced_function,
    shorten,
)
from evener._tf_private.random_numbers import num_drawing_operations
from evener._tf_private.tapes import tape_is_recording
from evener._tf_private.tracing import noticing_unknown_sizes
from evener.errors import EngineError
from evener.graph.draws import StreamState
from evener.partition.emit import PartitionedStep
from evener.partition.layout import Layout
from evener.partition.report import StepReport, warn_at_user_line
from evener.partition.tasks import HOST
from evener.partition.tensors import part_sizes_in_graph
from evener.plan import BatchNormName, Plan, check_shares, split_batch
from evener.strategy.arguments import (
    FOUND,
    Arguments,
    different_sizes,
    feeds_itself,
    has_batch,
    read_arguments,
)
from evener.strategy.misuse import add_note_on_memory, warn_of_one_device
from evener.strategy.plans import chosen_plan, shares_of_workers
from evener.strategy.prepared import PreparedStep, StepSettings
from evener.strategy.shares import ShareController
from evener.strategy.spot_check import SpotCheck
from evener.strategy.verify import Verification, Verifier, chosen_verification
from evener.workers.process import group_of_process

# Traces of a step, and those that the program's own function would have in their place.
#
# `tf.function` traces a function for each kind of arguments: for each size of a batch, or, with a
# signature or relaxed shapes, for many. Each of its traces has random streams of its own. Here, one
# trace serves many sizes, so that it may serve several traces of the program, which keep their
# streams apart::
#
#     batches           of the program       here               streams
#     [8, 3, 4]         trace A              [B, 3, 4]          A 0
#     [8, 5, 4]         trace B              [B, s, 4]          B 0
#     [8, 3, 4]         trace A              [B, 3, 4]          A 1
#     [5, 5, 4]         trace C              [B, s, 4]          C 0
#
# A step that computes another thing for a size that is not known, or draws from kernels that keep
# their count for themselves, is traced as the program would trace it, and serves that trace alone.

Trace: TypeAlias = Callable[
    [Arguments, Sequence[tf.TensorSpec], int | None, StreamState], PreparedStep
]
"""Function of arguments, specs of their tensors, the number of samples if it is fixed, and random
numbers of the program's trace."""


class ProgramTrace:
    """One trace that the program's function would have."""

    def __init__(self) -> None:
        self.streams = StreamState()
        self.steps: dict[Any, PreparedStep] = {}


class StepTraces:
    """Traces of a step, one for each kind of arguments."""

    def __init__(self, when_traced: Callable[[PartitionedStep], object] | None) -> None:
        self._when_traced = when_traced
        self._traces: dict[Any, PreparedStep] = {}
        self._all: dict[PreparedStep | None, None] = {}
        self._needs_sizes: set[Any] = set()
        self._of_program: dict[Any, ProgramTrace] = {}

    def values(self) -> list[PreparedStep]:
        """Return all traces."""
        return [step for step in self._all if step is not None]

    def of_program(self, key: Any) -> ProgramTrace:
        """Return a trace of the program's function."""
        return self._of_program.setdefault(key, ProgramTrace())

    def find(
        self,
        arguments: Arguments,
        program: ProgramTrace,
        shapes: Callable[[], Sequence[tf.TensorShape]],
        make: Trace,
    ) -> PreparedStep:
        """Return a trace that serves arguments."""
        key = arguments.key(), tf.executing_eagerly()
        step = program.steps.get(key)
        if step is None:
            step = self._find(key, arguments, program, shapes(), make)
            program.streams.is_first = False
            # In a graph, each call has kernels and streams of its own.
            draws = step.draws_from_seeds() or program.streams.draws_in_python
            if tf.executing_eagerly() or not draws:
                program.steps[key] = step
            if step not in self._all:
                self._all[step] = None
                if self._when_traced is not None:
                    self._when_traced(step.partitioned)
        return step

    def _find(
        self,
        key: Any,
        arguments: Arguments,
        program: ProgramTrace,
        shapes: Sequence[tf.TensorShape],
        make: Trace,
    ) -> PreparedStep:
        """Return the trace for all sizes, unless the step needs those of the program's trace."""
        general, own = self._traces.get(key), _own_specs(arguments, shapes)
        specs = _specs(arguments, own, None if general is None else general.specs)
        if general is not None and general.serves(specs):
            return general
        symbolic: Exception | None = None
        # What is not known in either is not known to the program.
        if specs == own or key not in self._needs_sizes:
            try:
                with noticing_unknown_sizes() as sizes:
                    step = make(arguments, specs, None, program.streams)
                draws = step.draws_from_seeds() or program.streams.draws_in_python
                if not draws and not sizes.is_asked:
                    self._replace(key, step)
                    return step
                if not (draws and tf.executing_eagerly()) and (specs == own or not sizes.is_asked):
                    return step
            except Exception as error:
                if specs == own:
                    raise
                symbolic = error
        # The step asks for sizes while it is traced, as `len(x)`, or has streams of its own.
        alone = dataclasses.replace(arguments, axes=(), unknown=()).key()
        if alone not in program.steps:
            pairs = zip(own, arguments.axes, strict=True)
            samples = [spec.shape[axis] for spec, axis in pairs if axis is not None]
            try:
                known = (size for size in samples if size is not None)
                program.steps[alone] = make(arguments, own, next(known, None), program.streams)
            except Exception as error:
                # The first attempt says no more, if it failed in the same way.
                raise error from None if type(error) is type(symbolic) else symbolic
        self._needs_sizes.add(key)
        return program.steps[alone]

    def _replace(self, key: Any, step: PreparedStep) -> None:
        """Use a trace for more sizes in place of the one before, which is not needed any more."""
        before = self._traces.get(key)
        self._traces[key] = step
        for program in self._of_program.values():
            if before is not None and program.steps.get(key) is before:
                program.steps[key] = step
        self._all.pop(before, None)


def _own_specs(arguments: Arguments, shapes: Sequence[tf.TensorShape]) -> list[tf.TensorSpec]:
    """Return the specs of tensors in a trace of the program; their ranks are known."""
    pairs = zip(arguments.tensors, shapes, strict=True)
    return [
        tf.TensorSpec(
            [None] * t.shape.rank if shape.rank is None and t.shape.rank else shape, t.dtype
        )
        for t, shape in pairs
    ]


def _specs(
    arguments: Arguments, own: Sequence[tf.TensorSpec], before: Sequence[tf.TensorSpec] | None
) -> list[tf.TensorSpec]:
    """Return the specs of tensors; sizes that have changed since the last trace are left open."""
    specs = []
    for index, (spec, axis) in enumerate(zip(own, arguments.axes, strict=True)):
        shape = spec.shape.as_list() if spec.shape.rank is not None else None
        if shape is not None and axis is not None:
            shape[axis] = None
        if shape is not None and before is not None and before[index].shape.rank == len(shape):
            old = before[index].shape.as_list()
            shape = [
                size if size == known else None for size, known in zip(shape, old, strict=True)
            ]
        untyped: Any = shape
        specs.append(tf.TensorSpec(untyped, spec.dtype))
    return specs


# Split of a batch: the samples of each replica, by shares that may change.


class BatchSplit:
    """Split of the batches of a step among replicas."""

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
        """Use other shares from the next step on."""
        self._shares = check_shares(shares, num_expected=self._num_replicas)
        if self.controller is not None:
            self.controller.assign(self._shares)

    def sizes(self, num_samples: int | None, trace: PreparedStep) -> list[int]:
        """Return the samples of each replica; of a step without samples, the rows that it draws."""
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
        """Return the samples of each replica in the graph that is being built, int32 vector."""
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


# Step on several devices: its arguments are read, a trace is found, and the trace is run.

P = ParamSpec("P")
R = TypeVar("R")


class DistributedStep(Generic[P, R]):
    """Step on several devices, called as the step for one device. Made by `evener.distribute`."""

    def __init__(
        self,
        step: Callable[P, R],
        settings: StepSettings,
        *,
        shares: Sequence[float],
        in_axes: Any = FOUND,
        program: Callable[..., Any] | None = None,
    ) -> None:
        self._step = body_of(step)
        self._converted = converted_as_by(step, self._step)
        self._program = program or step
        self._signature = getattr(self._program, "input_signature", None)
        functools.update_wrapper(self, self._step, updated=())
        self._settings = settings
        self._names = settings.layout.devices
        self._first_device = settings.layout.first_device
        self._group = settings.layout.group
        self._in_axes = in_axes
        self._verifies = chosen_verification(settings.verify)
        self.verifications: list[Verification] = []
        self.spot_checks: list[SpotCheck] = []
        self._traces = StepTraces(settings.when_traced)
        self._bodies: list[DistributedStep[..., Any]] = []
        self._has_looped = False
        self._split = BatchSplit(shares, len(self._names), settings.controller)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that compute, one for each share."""
        return self._names

    @property
    def shares(self) -> tuple[float, ...]:
        """Fraction of every batch that each device computes; the sum is 1."""
        shares = self._split.shares
        return tuple(share / sum(shares) for share in shares)

    def set_shares(self, shares: Sequence[float]) -> None:
        """Change the shares from the next step on. Nothing is traced again."""
        self._split.assign(shares)

    def report(self) -> StepReport:
        """Return the operations that were gathered in all traces of the step so far."""
        return StepReport.of(self.partitioned_steps)

    @property
    def partitioned_steps(self) -> list[PartitionedStep]:
        """Partitioned steps so far, by kind of arguments: the step, or the bodies of its loops."""
        own = [trace.partitioned for trace in self._traces.values()]
        return own + [inner for body in self._bodies for inner in body.partitioned_steps]

    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step."""
        try:
            return self._call(_by_signature(self._signature, args), kwargs)
        except Exception as error:
            shorten(error)
            raise

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._takes_its_batches((args, kwargs)):
            return self._call_with_loops(args, kwargs)
        arguments = read_arguments((args, kwargs), self._axes(args, kwargs))
        num_samples = arguments.num_samples
        is_recorded = tape_is_recording()
        if is_recorded:
            _warn_of_tape()
        if is_recorded or (tf.executing_eagerly() and tf.config.functions_run_eagerly()):
            with tf.device(self._first_device):
                return self._step(*args, **kwargs)
        if not tf.executing_eagerly():
            shapes = [tensor.shape for tensor in arguments.tensors]
            program = self._traces.of_program((arguments.key(), *map(str, shapes)))
            is_called = is_traced_function(self._program)
            first = None if is_called else num_drawing_operations()
            if program.streams.draws_in_python and not is_called:
                # The program runs its Python code for each call.
                program = ProgramTrace()
            make = functools.partial(self._trace, first_draw=first)
            trace = self._traces.find(arguments, program, lambda: shapes, make)
            if self._group is not None:
                self._group.note_step()
            sizes = self._split.sizes_in_graph(arguments.tensors, trace)
            return trace.inline(arguments.tensors, sizes, num_samples)
        args, kwargs = arguments.pack(arguments.tensors)
        key = self._traces_of_program.find(args, kwargs)
        program = self._traces.of_program(key)
        shapes_of = functools.partial(
            self._traces_of_program.shapes, key, args, kwargs, arguments.tensors
        )
        trace = self._traces.find(arguments, program, shapes_of, self._trace)
        num_samples = arguments.samples_along(trace.batch_axes)
        if num_samples == 0:
            # No device has a sample; kernels that need some would fail on all of them.
            return trace.plain(arguments.tensors, self._first_device)

        def run() -> Any:
            sizes = self._split.sizes(num_samples, trace)
            return trace(arguments.tensors, sizes, program.streams)

        try:
            return run() if self._group is None else self._group.call(run, outline=trace)
        except tf.errors.ResourceExhaustedError as error:
            add_note_on_memory(
                error,
                devices=self._names,
                shares=self.shares,
                owned_bytes=trace.owned_bytes(),
                gathered=self.report().gathered,
            )
            raise

    def _axes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the axes that count samples, as a prefix of the nest of all arguments."""
        in_axes = self._in_axes
        if isinstance(in_axes, str) and in_axes == FOUND:
            return in_axes
        of_args = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        return of_args, dict.fromkeys(kwargs)

    def _takes_its_batches(self, arguments: Any) -> bool:
        """Return whether a step is given no batch, but may loop over data."""
        if tape_is_recording():
            return False
        if not tf.executing_eagerly():
            return feeds_itself(arguments)
        is_alone = not tf.nest.flatten(arguments)
        return (is_alone or feeds_itself(arguments)) and not tf.config.functions_run_eagerly()

    def _call_with_loops(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a step that takes its batches itself: the bodies of its loops are partitioned."""
        if self._split.controller is None:
            # A graph of several steps reads the shares in each of them.
            shares = self._split.shares
            self._split.controller = ShareController(self._names, shares, measured=False)
        with running_bodies(self._run_body):
            results = self._function(*args, **kwargs)
        if not self._has_looped:
            self._has_looped = True
            bodies = (step for body in self._bodies for step in body.partitioned_steps)
            warn_of_one_device(self._function, args, kwargs, bodies, self._names)
        return results

    @functools.cached_property
    def _traces_of_program(self) -> TracesOfProgram:
        """The traces that the program's function would have."""
        return TracesOfProgram(self._program)

    @functools.cached_property
    def _function(self) -> Any:
        """The step as it is written, traced."""
        function = tf.function(self._converted)
        take_batches(function)
        return function

    def _run_body(self, body: Callable[[Any], Any], batch: Any) -> Any:
        if not has_batch(batch):
            return body(batch)
        controller = self._split.controller
        settings = dataclasses.replace(self._settings, controller=controller, verify=self._verifies)
        make: Any = type(self)
        step: DistributedStep[..., Any] = make(body, settings, shares=self._split.shares)
        step.verifications = self.verifications
        self._bodies.append(step)
        return step(batch)

    def _trace(
        self,
        arguments: Arguments,
        specs: Sequence[tf.TensorSpec],
        num_samples: int | None,
        streams: StreamState,
        *,
        first_draw: int | None = None,
    ) -> PreparedStep:
        return PreparedStep(
            self._converted,
            arguments,
            specs,
            dataclasses.replace(self._settings, controller=self._split.controller),
            streams=streams,
            num_samples=num_samples,
            first_draw=first_draw,
            verifier=Verifier(self.verifications.append) if self._verifies else None,
            when_checked=self.spot_checks.append if self._verifies is None else None,
        )


def _by_signature(signature: Sequence[Any] | None, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make tensors of the arguments of a `tf.function` whose signature says so."""
    if signature is None:
        return args

    def converted(spec: Any, value: Any) -> Any:
        is_array = isinstance(spec, tf.TensorSpec) and not isinstance(value, tf.Tensor)
        return tf.convert_to_tensor(value, spec.dtype) if is_array else value

    return (*map(converted, signature, args), *args[len(signature) :])


def _warn_of_tape() -> None:
    warn_at_user_line(
        "ENG-081",
        "A distributed step was called while a tf.GradientTape records; it runs on one device.",
        why="The step was partitioned with its own gradients, and a tape outside of it cannot "
        "differentiate what was partitioned.",
        fix="Take the gradient inside the step, and distribute the step as a whole.",
    )


# `evener.distribute`: a step that is written for one device, on all devices.


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
    devices along the batch: work on single samples runs on the device of the sample, sums over
    samples are partial sums that are added up, and operations that mix samples in another way are
    gathered and computed once.

    Args:
        step: Function that `tf.function` can trace, written for one device. Without it, a
            decorator is returned.
        plan: Plan with stages, micro-batches and shares. Excludes ``devices``, ``shares``
            and ``batch_norm``. The variables of the step stay on the devices where they are made.
        devices: Device spec such as ``"gpu:0,gpu:1"`` or ``"cpu:2"``, or names of devices.
            Default: ``EVENER_DEVICES``, else all usable GPUs.
        shares: Relative shares of each batch, one per device; ``"even"``; or None (default): even
            at first, within the memory of each device, then rebalanced by the measured time of
            each device in steps that train.
        in_axes: Axis of each argument that counts samples, as in ``jax.vmap``: an axis, None for
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
        `DistributedStep`, which is called as the step is, and returns tensors for the whole batch.

    Raises:
        DeviceError: DEV-001 to DEV-014, as in `evener.use_devices`, if a device does not exist or
            cannot be configured any more.
        PlanError: PLAN-007 to PLAN-011, PLAN-020 or PLAN-050 for wrong shares, PLAN-035 for an
            unknown ``batch_norm``, PLAN-051 for other arguments beside a plan, PLAN-029 if devices
            of the plan are missing.
        EngineError: ENG-099 if the step is no function, such as a device spec.

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
    if not callable(step):
        raise _no_function(step)
    group = group_of_process()
    is_measured = plan is None and shares is None
    plan = chosen_plan(plan, devices=devices, shares=shares, batch_norm=batch_norm, group=group)
    layout, controller = Layout.of(plan, group), None
    if group is not None:
        controller = shares_of_workers(group, layout, plan.shares, measured=is_measured)
    elif is_measured and len(plan.devices) > 1:
        memory_bytes = [device.memory_bytes for device in plan.devices]
        controller = ShareController(
            plan.device_names, plan.shares, measured=True, memory_bytes=memory_bytes
        )
    settings = StepSettings(layout=layout, controller=controller, verify=verify)
    return DistributedStep(step, settings, shares=plan.shares, in_axes=in_axes)


def _no_function(step: object) -> EngineError:
    keyword = "plan" if isinstance(step, Plan) else "devices"
    return EngineError(
        "ENG-099",
        f"{step!r} is not a function.",
        why="The first argument of evener.distribute is the step; devices and plans are keyword "
        "arguments.",
        fix=f"Write @evener.distribute({keyword}=...) above the step, or "
        f"evener.distribute(step, {keyword}=...).",
    )
