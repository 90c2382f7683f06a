"""The check of a step: when it takes its samples, the thread that computes it, and its result.

::

    first run that is due    rows of the batch ──► host
    thread, meanwhile                               └► variables ──► both sides ──► warning, if any
    later runs               nothing: one comparison of two numbers

A run never waits for a check and never fails by it: what cannot be checked is "not done", with the
reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from evener import _tf_private
from evener.engine.partition import PartitionedStep
from evener.engine.partition.homes import HOST
from evener.engine.report import line_of
from evener.engine.spot_check.compare import find_differences
from evener.engine.spot_check.cost import begins_after, estimated_seconds
from evener.engine.spot_check.obstacle import find_obstacle, num_bytes, num_parts
from evener.engine.spot_check.sides import Extent, Sides, extent_of, written_names
from evener.engine.trace.first_sizes import fits_one_batch_size
from evener.engine.trace.graph import Tensor
from evener.engine.trace.step import TracedStep
from evener.errors import EvenerWarning, warn

LARGEST_ARGUMENTS = 1 << 26
"""Bytes of arguments that are."""
LARGEST_BATCH = 64
"""Samples of a batch of which no samples can be left out."""
_SMALL_BATCHES = 3
_LONGEST_REASON = 300
_SIZES = ((2, 1, 2), (2, 1), (1, 1))
"""The samples of each part, by how many there are: parts of unlike sizes where it can be."""
_LOG = logging.getLogger("evener")
_ONE_AT_A_TIME = threading.Lock()
_RUNNING: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCheck:
    """What a check of a step found.

    Attributes:
        state: ``"agrees"``, ``"differs"`` or ``"not done"``.
        reason: Why it was not done, or an empty text.
        differences: For every tensor that differs its name and the difference, relative to its
            largest number.
        num_samples: How many samples were computed.
        num_tensors: How many tensors were compared.
        seconds: How long it took, beside the training.
    """

    state: Literal["agrees", "differs", "not done"]
    reason: str = ""
    differences: tuple[tuple[str, float], ...] = ()
    num_samples: int = 0
    num_tensors: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.state == "not done":
            return f"not done: {self.reason}"
        compared = f"{self.num_tensors} tensors of a step, {self.num_samples} samples"
        different = "; ".join(f"{name} by {by:.1e}" for name, by in self.differences)
        return f"{compared}: {different or 'no difference'}"


class _NotDoneError(Exception):
    """A step, or a batch, that cannot be checked; says why."""


class StepChecker:
    """Checks a partitioned step once.

    Args:
        step: The step.
        traced: The step as it was traced.
        when_checked: Called with what was found.
        takes_all: Whether arguments fit whole batches alone; such batches have to be small.
    """

    def __init__(
        self,
        step: PartitionedStep,
        traced: TracedStep,
        when_checked: Callable[[SpotCheck], None],
        *,
        takes_all: bool = False,
    ) -> None:
        self._when_checked = when_checked
        self._takes_all = takes_all or fits_one_batch_size(traced.graph)
        self._num_small = 0
        self._step = step
        self._traced = traced
        self._arguments = traced.graph.inputs[: len(traced.batch_axes)]
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._due: tf.Variable | None = None
        self._begin = float("inf")
        reason = find_obstacle(step, traced)
        if reason:
            self._end(SpotCheck(state="not done", reason=reason))
            return
        self._sizes = _SIZES[0] if num_parts(step) > 2 else _SIZES[1]
        seconds = estimated_seconds(
            traced.graph,
            num_samples=LARGEST_BATCH if self._takes_all else sum(self._sizes),
            num_parts=len(self._sizes),
            variable_bytes=num_bytes(traced),
        )
        # Nothing may read the clock where all operations have to be deterministic.
        self._is_timed = not _tf_private.random_numbers.is_deterministic()
        self._delay = begins_after(seconds)
        self._begin = time.time() + self._delay if self._is_timed else 0.0

    def offer(self, tensors: Sequence[Any]) -> None:
        """Take the first samples of a batch, outside of graphs, if a check is due.

        Args:
            tensors: The arguments of the step, flat.
        """
        if self._begin <= time.time():
            try:
                rows = [np.asarray(one) for one in self._rows(tensors)]
            except Exception as error:
                self._end(SpotCheck(state="not done", reason=_text(error)))
                return
            self._take(*rows)

    def offer_in_graph(self, tensors: Sequence[Any]) -> None:
        """Add to the graph that is being made what takes the first samples of a batch once."""
        if self._begin == float("inf"):
            return
        if self._due is None:
            with tf.init_scope(), tf.device(HOST):
                self._due = _tf_private.variables.plain_variable(self._begin, tf.float64)
        due = self._due
        outer = [one for one in self._traced.captures if _is_value_of_outer_graph(one)]

        def give() -> tf.Operation:
            rows = [*self._rows(tensors), *outer]
            begin = tf.numpy_function(self._take, rows, tf.float64)
            return due.assign(tf.ensure_shape(begin, []), read_value=False)

        with tf.name_scope("evener_spot_check"), tf.device(HOST):
            now = tf.timestamp() if self._is_timed else tf.constant(0.0, tf.float64)
            tf.cond(due.read_value() <= now, give, tf.no_op)

    def _rows(self, tensors: Sequence[Any]) -> list[Any]:
        count = sum(self._sizes)
        rows = []
        for tensor, axis in zip(tensors, self._traced.batch_axes, strict=True):
            if axis is None or self._takes_all:
                rows.append(tensor)
            else:
                rows.append(tensor[(*[slice(None)] * axis, slice(count))])
        return rows

    def _take(self, *arrays: Any) -> float:
        """Begin the check with samples of a batch; return when to take those of another one."""
        try:
            with self._lock:
                if self._thread is None:
                    # TensorFlow may use the memory again.
                    self._begin_with([np.array(array) for array in arrays])
        except Exception as error:
            self._end(SpotCheck(state="not done", reason=_text(error)))
        return np.float64(self._begin)  # pyright: ignore[reportReturnType]

    def _begin_with(self, arrays: list[np.ndarray]) -> None:
        axes = [*self._traced.batch_axes, *[None] * len(arrays)]
        pairs = list(zip(arrays, axes, strict=False))
        counts = {array.shape[axis] for array, axis in pairs if axis is not None}
        if len(counts) != 1:
            raise _NotDoneError("the arguments have different numbers of samples")
        count = counts.pop()
        if count < 2:
            self._num_small += 1
            if self._num_small < _SMALL_BATCHES:
                return  # A later batch may do.
            raise _NotDoneError("the batches have one sample")
        if sum(array.nbytes for array in arrays) > LARGEST_ARGUMENTS:
            raise _NotDoneError("the arguments are large")
        if self._takes_all and count > LARGEST_BATCH:
            raise _NotDoneError(f"no sample of the batch can be left out, and it has {count}")
        self._begin = float("inf")
        sizes = next(s for s in _SIZES if sum(s) <= count and len(s) <= len(self._sizes))
        if self._takes_all:
            sizes = (*sizes[:-1], count - sum(sizes[:-1]))
        arrays = [
            array if axis is None else array.take(range(sum(sizes)), axis) for array, axis in pairs
        ]
        # Not ended by force with the program, as a thread of one of TensorFlow's would be.
        self._thread = threading.Thread(
            target=self._check, args=(arrays, sizes), name="evener-spot-check", daemon=False
        )
        _RUNNING.add(self._thread)
        self._thread.start()

    def _check(self, arrays: list[np.ndarray], sizes: tuple[int, ...]) -> None:
        """Check, in a thread of its own; the interpreter waits for it to end."""
        with _ONE_AT_A_TIME:
            began = time.perf_counter()
            try:
                result = self._compare(arrays, sizes)
            # Whatever a few samples do to a program that was not written for them.
            except Exception as error:
                result = SpotCheck(state="not done", reason=_text(error))
            self._end(dataclasses.replace(result, seconds=time.perf_counter() - began))

    def _end(self, result: SpotCheck) -> None:
        self._begin = float("inf")
        _LOG.debug("spot check of a step: %s", result)
        self._when_checked(result)
        if result.state == "differs":
            _warn(result)

    def _compare(self, arrays: list[np.ndarray], sizes: tuple[int, ...]) -> SpotCheck:
        self._go_on()
        extent = extent_of(self._step)
        if not extent.compared:
            raise _NotDoneError("nothing that the parts compute can be computed again")
        sides = Sides(self._step, self._traced, sizes, extent)
        if sides.obstacle:
            raise _NotDoneError(f"the {sides.obstacle} is not known")
        self._go_on()
        fed, variables, closed = self._inputs(sides.needed_inputs(), arrays)
        # One after the other, so that no device holds more than one of them twice.
        values = [variable.numpy() for variable in variables.values()]
        with tf.device(HOST):
            copies = [
                _tf_private.variables.plain_variable(one, tf.as_dtype(one.dtype)) for one in values
            ]
        closed |= {tensor: copy.handle for tensor, copy in zip(variables, copies, strict=True)}
        numbers = [*fed.values(), *values]
        specs = {tensor: tf.TensorSpec(one.shape, tensor.dtype) for tensor, one in fed.items()}
        function = sides.trace(closed, specs)

        def compute(inputs: Sequence[np.ndarray]) -> Any:
            self._go_on()
            for copy, value in zip(copies, inputs[len(fed) :], strict=True):
                copy.assign(value)
            tensors = [
                tf.constant(n, s.dtype) for n, s in zip(inputs, specs.values(), strict=False)
            ]
            return [[np.asarray(one) for one in side] for side in function(*tensors)]

        with tf.device(HOST):
            kinds = [reader is None for reader in extent.compared.values()]
            found = find_differences(compute, numbers, _epsilon(self._traced), kinds)
        return SpotCheck(
            state="differs" if found else "agrees",
            differences=tuple(
                (self._name(sides.compared[number], extent), by) for number, by in found.items()
            ),
            num_samples=sum(sizes),
            num_tensors=len(sides.compared),
        )

    def _go_on(self) -> None:
        """Give a long check up where the program has ended and waits for it alone."""
        if self._delay and not threading.main_thread().is_alive():
            raise _NotDoneError("the program has ended")

    def _inputs(
        self, needed: set[Tensor], arrays: Sequence[np.ndarray]
    ) -> tuple[dict[Tensor, np.ndarray], dict[Tensor, tf.Variable], dict[Tensor, Any]]:
        """Return arrays that are fed, variables that are copied, and what both sides share."""
        fed = dict(zip(self._arguments, arrays, strict=False))
        outer = iter(arrays[len(self._arguments) :])
        variables: dict[Tensor, tf.Variable] = {}
        closed: dict[Tensor, Any] = {}
        by_handle = {id(one.handle): one for one in self._traced.concrete.graph.variables}
        pairs = zip(self._traced.capture_inputs, self._traced.captures, strict=True)
        for tensor, capture in pairs:
            if _is_value_of_outer_graph(capture):
                fed[tensor] = next(outer)
            elif tensor not in needed:
                continue
            elif id(capture) in by_handle:
                variables[tensor] = by_handle[id(capture)]
            elif _tf_private.tensors.is_eager_tensor(capture):
                closed[tensor] = capture
            else:
                raise _NotDoneError("the step uses a resource of the function around it")
        fed = {tensor: array for tensor, array in fed.items() if tensor in needed}
        return fed, variables, closed

    def _name(self, tensor: Tensor, extent: Extent) -> str:
        reader = extent.compared[tensor]
        handles = {id(one.handle): one for one in self._traced.concrete.graph.variables}
        pairs = zip(self._traced.capture_inputs, self._traced.captures, strict=True)
        names = {
            tensor: handles[id(capture)].name for tensor, capture in pairs if id(capture) in handles
        }
        if reader is None:
            name = f"result {self._traced.graph.outputs.index(tensor)} of the step"
        else:
            written = next(written_names(reader, tensor, names), "")
            name = f"what updates {written}" if written else tensor.node.name
        line = line_of(tensor.node)
        return f"{name} ({line})" if line else name


def wait_for_checks(timeout_seconds: float | None = None) -> None:
    """Wait for the checks that have begun.

    Args:
        timeout_seconds: For each; None for no limit.
    """
    for thread in list(_RUNNING):
        thread.join(timeout_seconds)


def _epsilon(traced: TracedStep) -> float:
    """Return the rounding of the least precise dtype that a step computes in."""
    dtypes = {tensor.dtype for node in traced.graph for tensor in node.outputs}
    if tf.bfloat16 in dtypes:
        return 2.0**-8
    return 2.0**-11 if tf.float16 in dtypes else 2.0**-24


def _is_value_of_outer_graph(capture: Any) -> bool:
    """Return whether a step uses a value of the function that it is called in."""
    is_value = capture.dtype not in (tf.resource, tf.variant)
    return is_value and not _tf_private.tensors.is_eager_tensor(capture)


def _text(error: Exception) -> str:
    if isinstance(error, _NotDoneError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST_REASON]}"


def _warn(result: SpotCheck) -> None:
    name, by = max(result.differences, key=lambda one: one[1])
    others = len(result.differences) - 1
    and_more = f", and {others} more" if others else ""
    with contextlib.suppress(EvenerWarning):
        warn(
            "ENG-089",
            f"A step on several devices differs from one device: {name}, by {by:.1e} of its "
            f"largest number{and_more}.",
            why=f"{result.num_samples} samples of a batch were computed in parts and as a whole. "
            "The difference is more than rounding, and stays with other numbers.",
            fix="Run the program on one device, or with verify=True to compare the whole first "
            "step. This is a fault of evener: please report it.",
        )
