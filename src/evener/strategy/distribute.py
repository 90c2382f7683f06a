"""`evener.distribute`: a step that is written for one device, on all devices.

A call reads its arguments, finds the trace that serves them, divides the batch, and runs the trace.

`tf.function` traces a function for each kind of arguments: for each size of a batch, or, with a
signature or relaxed shapes, for many. Each of its traces has random streams of its own. Here, one
trace serves many sizes, so that it may serve several traces of the program, which keep their
streams apart::

    batches           of the program       here               streams
    [8, 3, 4]         trace A              [B, 3, 4]          A 0
    [8, 5, 4]         trace B              [B, s, 4]          B 0
    [8, 3, 4]         trace A              [B, 3, 4]          A 1
    [5, 5, 4]         trace C              [B, s, 4]          C 0

A step that computes another thing for a size that is not known, or draws from kernels that keep
their count for themselves, is traced as the program would trace it, and serves that trace alone.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, overload

import tensorflow as tf

from evener._tf_private import functions
from evener._tf_private.datasets import running_bodies, take_batches
from evener._tf_private.graphs import written_resources
from evener._tf_private.random_numbers import num_drawing_operations
from evener._tf_private.tapes import tape_is_recording
from evener._tf_private.tracing import noticing_unknown_sizes
from evener.auditing import GatheredOperation
from evener.base.text import format_bytes
from evener.devices.names import device_name
from evener.errors import EngineError
from evener.graph.draws import StreamState
from evener.graph.rewrites import CONDITIONS
from evener.partition.emit import PartitionedStep
from evener.partition.report import NEARLY_ALL, StepReport, warn_at_user_line
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
from evener.strategy.ownership import OwnerRegistry
from evener.strategy.plans import arrange, chosen_plan
from evener.strategy.prepared import PreparedStep, StepContext, StepRecords
from evener.strategy.shares import ShareController
from evener.strategy.spot_check import SpotCheck
from evener.strategy.verify import Verification, chosen_verification

_DEVICE = re.compile(r"/device:[A-Z]+:\d+")
_MOST_OPERATIONS = 3

P = ParamSpec("P")
R = TypeVar("R")

Trace: TypeAlias = Callable[
    [Arguments, Sequence[tf.TensorSpec], int | None, StreamState], PreparedStep
]
"""Function of arguments, specs of their tensors, the number of samples if it is fixed, and random
numbers of the program's trace."""


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
        keyword = "plan" if isinstance(step, Plan) else "devices"
        raise EngineError(
            "ENG-099",
            f"{step!r} is not a function.",
            why="The first argument of evener.distribute is the step; devices and plans are "
            "keyword arguments.",
            fix=f"Write @evener.distribute({keyword}=...) above the step, or "
            f"evener.distribute(step, {keyword}=...).",
        )
    is_measured = plan is None and shares is None
    plan, group = chosen_plan(plan, devices=devices, shares=shares, batch_norm=batch_norm)
    layout, controller = arrange(plan, group, measured=is_measured)
    context = StepContext(
        plan=plan,
        layout=layout,
        controller=controller,
        # Its variables stay where they are made.
        owners=OwnerRegistry(plan, ()),
        verify=chosen_verification(verify),
    )
    return DistributedStep(step, context, in_axes=in_axes)


class DistributedStep(Generic[P, R]):
    """Step on several devices, called as the step for one device. Made by `evener.distribute`."""

    def __init__(
        self,
        step: Callable[P, R],
        context: StepContext,
        *,
        in_axes: Any = FOUND,
        program: Callable[..., Any] | None = None,
        named_after: Callable[..., Any] | None = None,
    ) -> None:
        self._step = functions.body_of(step)
        self._converted = functions.converted_as_by(step, self._step)
        # Its parameters name the tensors in errors.
        self._named_after = named_after or self._converted
        self._program = program or step
        self._signature = getattr(self._program, "input_signature", None)
        functools.update_wrapper(self, self._step, updated=())
        self._context = context
        self._in_axes = in_axes
        self._traces = StepTraces(context.records)
        self._bodies: list[DistributedStep[..., Any]] = []
        self._has_looped = False

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that compute, one for each share."""
        return self._context.layout.devices

    @property
    def shares(self) -> tuple[float, ...]:
        """Fraction of every batch that each device computes; the sum is 1."""
        return self._context.controller.shares

    @property
    def verifications(self) -> list[Verification]:
        """Differences of the first runs from one device, with ``verify=True``."""
        return self._context.records.verifications

    @property
    def spot_checks(self) -> list[SpotCheck]:
        """Results of the checks of a few samples."""
        return self._context.records.spot_checks

    def set_shares(self, shares: Sequence[float]) -> None:
        """Change the shares from the next step on. Nothing is traced again.

        Args:
            shares: Shares of the devices relative to each other, 0 or more.

        Raises:
            PlanError: PLAN-007 to PLAN-011 or PLAN-020 for wrong shares.
        """
        self._context.controller.assign(check_shares(shares, num_expected=len(self.devices)))

    def report(self) -> StepReport:
        """Return the operations that were gathered in all traces of the step so far."""
        return StepReport.of(self.partitioned_steps)

    @property
    def partitioned_steps(self) -> list[PartitionedStep]:
        """Partitioned steps so far, by kind of arguments: the step, or the bodies of its loops."""
        own = [trace.partitioned for trace in self._traces.steps]
        return own + [inner for body in self._bodies for inner in body.partitioned_steps]

    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return self._call(_by_signature(self._signature, args), kwargs)
        except Exception as error:
            functions.shorten(error)
            raise

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_recorded = tape_is_recording()
        is_eager = tf.executing_eagerly()
        runs_eagerly = is_eager and tf.config.functions_run_eagerly()
        feeds = feeds_itself((args, kwargs)) or (is_eager and not tf.nest.flatten((args, kwargs)))
        if feeds and not is_recorded and not runs_eagerly:
            # A step that takes its batches itself: the bodies of its loops are partitioned.
            with running_bodies(self._run_body):
                results = self._function(*args, **kwargs)
            if not self._has_looped:
                self._has_looped = True
                bodies = (step for body in self._bodies for step in body.partitioned_steps)
                _warn_of_one_device(self._function, args, kwargs, bodies, self.devices)
            return results
        # A prefix of the nest of all arguments.
        axes: Any = FOUND
        if not (isinstance(self._in_axes, str) and self._in_axes == FOUND):
            is_nest = isinstance(self._in_axes, tuple)
            by_argument = self._in_axes if is_nest else (self._in_axes,) * len(args)
            axes = by_argument, dict.fromkeys(kwargs)
        arguments = read_arguments((args, kwargs), axes)
        num_samples = arguments.num_samples
        if is_recorded:
            warn_at_user_line(
                "ENG-081",
                "A distributed step was called while a tf.GradientTape records; it runs on one "
                "device.",
                why="The step was partitioned with its own gradients, and a tape outside of it "
                "cannot differentiate what was partitioned.",
                fix="Take the gradient inside the step, and distribute the step as a whole.",
            )
        if is_recorded or runs_eagerly:
            with tf.device(self._context.layout.first_device):
                return self._step(*args, **kwargs)
        group = self._context.layout.group
        if not is_eager:
            shapes = [tensor.shape for tensor in arguments.tensors]
            program = self._traces.of_program((arguments.key(), *map(str, shapes)))
            is_called = functions.is_traced_function(self._program)
            first = None if is_called else num_drawing_operations()
            if program.streams.draws_in_python and not is_called:
                # The program runs its Python code for each call.
                program = ProgramTrace()
            make = functools.partial(self._trace, first_draw=first)
            trace = self._traces.find(arguments, program, lambda: shapes, make)
            if group is not None:
                group.note_step()
            sizes = _sizes_in_graph(arguments.tensors, trace, self._context.controller)
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
            return trace.plain(arguments.tensors, self._context.layout.first_device)

        def run() -> Any:
            sizes = _sizes(num_samples, trace, self._context.controller)
            return trace(arguments.tensors, sizes, program.streams)

        try:
            return run() if group is None else group.call(run, outline=trace)
        except tf.errors.ResourceExhaustedError as error:
            add_note_on_memory(error, self._context, trace.owned_bytes(), self.report().gathered)
            raise

    @functools.cached_property
    def _traces_of_program(self) -> functions.TracesOfProgram:
        return functions.TracesOfProgram(self._program)

    @functools.cached_property
    def _function(self) -> Any:
        function = tf.function(self._converted)
        take_batches(function)
        return function

    def _run_body(self, body: Callable[[Any], Any], batch: Any) -> Any:
        if not has_batch(batch):
            return body(batch)
        make: Any = type(self)
        step: DistributedStep[..., Any] = make(body, self._context)
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
            self._context,
            streams=streams,
            num_samples=num_samples,
            first_draw=first_draw,
            named_after=self._named_after,
        )


def _by_signature(signature: Sequence[Any] | None, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make tensors of the arguments of a `tf.function` whose signature says so."""
    if signature is None:
        return args

    def converted(spec: Any, value: Any) -> Any:
        is_array = isinstance(spec, tf.TensorSpec) and not isinstance(value, tf.Tensor)
        return tf.convert_to_tensor(value, spec.dtype) if is_array else value

    return (*map(converted, signature, args), *args[len(signature) :])


def _sizes(num_samples: int | None, trace: PreparedStep, controller: ShareController) -> list[int]:
    """Return the samples of each replica; of a step without samples, the rows that it draws."""
    shares = controller.shares
    if num_samples is not None:
        controller.limit_for(num_samples, trace.memory_limits)
        return list(split_batch(num_samples, controller.shares))
    if trace.rows_without_batch > 1:
        return list(split_batch(trace.rows_without_batch, shares))
    first = next(k for k, share in enumerate(shares) if share > 0)
    return [int(k == first) for k in range(len(shares))]


def _sizes_in_graph(
    tensors: Sequence[Any], trace: PreparedStep, controller: ShareController
) -> tf.Tensor:
    """Return the samples of each replica in the graph that is being built, int32 vector."""
    pairs = zip(tensors, trace.batch_axes, strict=True)
    counts = [tf.shape(tensor)[axis] for tensor, axis in pairs if axis is not None]
    if not counts:
        # Of several workers, one may die.
        if trace.rows_without_batch == 1 and trace.layout.group is None:
            return tf.constant(_sizes(None, trace, controller))
        with tf.device(HOST):
            count = tf.constant(trace.rows_without_batch)
            return part_sizes_in_graph(count, controller.shares_in_graph(count, None))
    equal = [[tf.shape(tensors[k])[0] for k in indices] for indices in trace.equal_sizes]
    message = str(different_sizes("they differ"))
    with tf.device(HOST):
        # For sizes that are only known while the step runs.
        checks = [
            tf.debugging.assert_equal(count, sizes[0], message)
            for sizes in equal or [counts]
            for count in sizes[1:]
        ]
        with tf.control_dependencies([check for check in checks if check is not None]):
            count = tf.identity(counts[0])
            shares = controller.shares_in_graph(count, trace.memory_limits)
            return part_sizes_in_graph(count, shares)


def _warn_of_one_device(
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    bodies: Iterable[PartitionedStep],
    devices: Sequence[str],
) -> None:
    """Warn if a step that loops over its data trains, and next to nothing of it is in parts."""
    report = StepReport.of(bodies)
    once = sum(report.flops_once.values())
    if len(devices) < 2 or report.flops_of_parts > (1 - NEARLY_ALL) * (
        report.flops_of_parts + once
    ):
        return
    graph = function.get_concrete_function(*args, **kwargs).graph
    trained = {graph.capture(variable.handle).ref() for variable in graph.trainable_variables}
    written = map(written_resources, graph.get_operations())
    if not any(resource.ref() in trained for resources in written for resource in resources):
        return
    conditions = [each for each in report.gathered if each.operation in CONDITIONS]
    if not report.gathered:
        cause = (
            "does not loop `for batch in dataset` or begin with `next(iterator)`, or it draws all "
            "rows itself: only what is given a batch is partitioned"
        )
    elif conditions:
        line = conditions[0].line
        cause = f"its training step is in a condition, as `break` makes one ({line})"
    else:
        first = report.gathered[0]
        cause = f"most of its training step is computed once, behind what is gathered: {first}"
    warn_at_user_line(
        "ENG-093",
        f"{graph.name} trains on {devices[0]} alone, although it was distributed.",
        why=f"It is given no batch, and {cause}.",
        fix="Write `for batch in dataset` without conditions around the training step, or "
        "distribute a step that has the batch as an argument.",
    )


def add_note_on_memory(
    error: tf.errors.ResourceExhaustedError,
    context: StepContext,
    owned_bytes: Mapping[str, int],
    gathered: Sequence[GatheredOperation],
) -> None:
    """Add ENG-050 to an error: what fills the memory of the device, and what makes it less.

    The error stays what it is. A step is not repeated with less: some of its variables may have
    been updated already.
    """
    match = _DEVICE.search(error.message)
    name = device_name(match.group()) if match else ""
    devices = context.layout.devices
    pairs = zip(devices, context.controller.shares, strict=True)
    share = sum(share for device, share in pairs if device == name)
    parts = [f"variables that it owns ({format_bytes(owned_bytes.get(name, 0))})"]
    if share:
        parts.append(f"activations of its {share:.0%} of every batch, and weights of other owners")
    if gathered:
        names = ", ".join(map(str, gathered[:_MOST_OPERATIONS]))
        parts.append(f"what is computed once of the samples of all devices ({names})")
    others = ", ".join(repr(device) for device in devices)
    advice = EngineError(
        "ENG-050",
        f"{name or 'A device'} ran out of memory in a step.",
        why=f"It holds {'; '.join(parts)}. Activations are most of it where batches are large.",
        fix="compute fewer samples at once, with the same results: "
        f"plan=evener.Plan.data_parallel([{others}], num_micro_batches=4); or give "
        f"{name or 'the device'} a smaller share; or recompute activations (docs/pipelines.md).",
    )
    error.add_note(str(advice))


class ProgramTrace:
    """One trace that the program's function would have."""

    def __init__(self) -> None:
        self.streams = StreamState()
        # Steps that run in its place, by kind of arguments.
        self.steps: dict[Any, PreparedStep] = {}


class StepTraces:
    """Traces of a step, one for each kind of arguments, written into records."""

    def __init__(self, records: StepRecords) -> None:
        self._records = records
        self._general: dict[Any, PreparedStep] = {}
        self.steps: dict[PreparedStep, None] = {}
        self._needs_sizes: set[Any] = set()
        self._of_program: dict[Any, ProgramTrace] = {}

    def of_program(self, key: Any) -> ProgramTrace:
        return self._of_program.setdefault(key, ProgramTrace())

    def find(
        self,
        arguments: Arguments,
        program: ProgramTrace,
        shapes: Callable[[], Sequence[tf.TensorShape]],
        make: Trace,
    ) -> PreparedStep:
        key = arguments.key(), tf.executing_eagerly()
        step = program.steps.get(key)
        if step is None:
            # Those of a trace of the program; ranks are known.
            own = [
                tf.TensorSpec(
                    [None] * t.shape.rank if shape.rank is None and t.shape.rank else shape, t.dtype
                )
                for t, shape in zip(arguments.tensors, shapes(), strict=True)
            ]
            step = self._find(key, arguments, program, own, make)
            step.specs_of_program = tuple(own)
            program.streams.is_first = False
            # In a graph, each call has kernels and streams of its own.
            draws = step.draws_from_seeds or program.streams.draws_in_python
            if tf.executing_eagerly() or not draws:
                program.steps[key] = step
            if step not in self.steps:
                self.steps[step] = None
                self._records.add(step)
        return step

    def _find(
        self,
        key: Any,
        arguments: Arguments,
        program: ProgramTrace,
        own: list[tf.TensorSpec],
        make: Trace,
    ) -> PreparedStep:
        """Return the trace for all sizes, unless the step needs those of the program's trace."""
        general = self._general.get(key)
        specs = _specs(arguments, own, None if general is None else general.specs)
        if general is not None and general.serves(specs):
            return general
        symbolic: Exception | None = None
        # What is not known in either is not known to the program.
        if specs == own or key not in self._needs_sizes:
            try:
                with noticing_unknown_sizes() as sizes:
                    step = make(arguments, specs, None, program.streams)
                draws = step.draws_from_seeds or program.streams.draws_in_python
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
        before = self._general.get(key)
        self._general[key] = step
        if before is not None:
            for program in self._of_program.values():
                if program.steps.get(key) is before:
                    program.steps[key] = step
            self.steps.pop(before, None)


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
