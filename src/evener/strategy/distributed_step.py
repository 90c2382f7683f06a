"""Step on several devices: its arguments are read, a trace is found, and the trace is run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import tensorflow as tf

from evener._tf_private.autograph import converted_as_by
from evener._tf_private.datasets import running_bodies, take_batches
from evener._tf_private.functions import TracesOfProgram, body_of, is_traced_function
from evener._tf_private.random_numbers import num_drawing_operations
from evener._tf_private.tapes import tape_is_recording
from evener._tf_private.tracebacks import shorten
from evener.checking.spot_check import SpotCheck
from evener.checking.verify import Verification, Verifier, chosen_verification
from evener.engine.origin import warn_at_user_line
from evener.engine.partition.emit import PartitionedStep
from evener.engine.report import StepReport
from evener.engine.trace.draws import StreamState
from evener.strategy.arguments import FOUND, Arguments, feeds_itself, has_batch, read_arguments
from evener.strategy.batch_split import BatchSplit
from evener.strategy.exhausted import add_note_on_memory
from evener.strategy.own_loops import warn_of_one_device
from evener.strategy.prepared import PreparedStep
from evener.strategy.share_controller import ShareController
from evener.strategy.step_settings import StepSettings
from evener.strategy.step_traces import ProgramTrace, StepTraces

P = ParamSpec("P")
R = TypeVar("R")


class DistributedStep(Generic[P, R]):
    """Step on several devices, called as the step for one device. Made by `evener.distribute`.

    Args:
        step: Step that is written for one device.
        settings: Settings of the step and the bodies of its loops.
        shares: Relative shares, one per replica.
        in_axes: Batch axes, as in `evener.distribute`.
        program: The `tf.function` of the program, if it is not the step.

    Attributes:
        verifications: Differences of the first runs from one device, with ``verify=True``.
        spot_checks: Results of the checks of a few samples.
    """

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
        """Change the shares from the next step on. Nothing is traced again.

        Args:
            shares: Shares of the devices relative to each other, 0 or more.

        Raises:
            PlanError: PLAN-007 to PLAN-011 or PLAN-020 for wrong shares.
        """
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
        """Run the step.

        Raises:
            DataError: DATA-010 to DATA-012 if the arguments do not fit ``in_axes``.
        """
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
