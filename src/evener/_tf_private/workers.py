"""Calls that several workers compute together, and that are made again if one of them dies."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from evener._tf_private.fits import is_read_by_keras, keras_reads
from evener._tf_private.functions import CALL
from evener._tf_private.patches import Patch

_CALLS = Patch(
    "traced functions of workers",
    CALL,
    why="A call that the death of another worker breaks off is made again with the same arguments. "
    "A program's own functions may call `strategy.run`, and there is no public hook around them.",
    if_it_changes="The death of a worker ends custom loops of the others.",
)
_READS = Patch(
    "reads of replaced workers",
    "tensorflow.python.ops.resource_variable_ops:BaseResourceVariable._read_variable_op",
    why="A replacement runs the program with the results of the other workers, and its weights are "
    "not theirs before it stands with them. There is no public hook around reads.",
    if_it_changes="A replacement gives wrong weights to a program that reads them between steps.",
)
_BATCHES = Patch(
    "batches of workers",
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer._make_function",
    why="Keras's step takes its batch from an iterator inside of a traced function, and a batch "
    "that was taken is lost when the function fails. Here it is taken before.",
    if_it_changes="The death of a worker ends `fit` of the others.",
)
_STOPPING = Patch(
    "best weights of workers",
    "keras.src.callbacks.early_stopping:EarlyStopping.on_train_begin",
    "keras.src.callbacks.early_stopping:EarlyStopping.on_epoch_end",
    why="The callback reads weights between two steps, which a replacement does not know yet. It "
    "is handed over the best ones of another worker instead.",
    if_it_changes="A worker of a program with `restore_best_weights=True` cannot be replaced.",
)
_NEXT = Patch(
    "batches of loops on several workers",
    "tensorflow.python.data.ops.iterator_ops:OwnedIterator.__next__",
    why="To tell what it costs that every worker reads whole batches in a loop of the program. The "
    "class has no public name.",
    if_it_changes="Workers do not tell that such loops wait for their data.",
)


class Group(Protocol):
    """The workers."""

    @property
    def is_late(self) -> bool:
        """Whether this worker does not stand with the others yet."""
        ...

    def hand_over(self, owner: object, name: str) -> None:
        """Let a replacement have an attribute of an object: a list of arrays."""
        ...

    def check_read(self, handle: Any) -> None:
        """Refuse to read a variable whose value this worker does not know yet."""
        ...

    def compare_state(self) -> None:
        """Compare the whole state of all workers before the next call with exchanges."""
        ...

    def call(
        self,
        function: Callable[[], Any],
        *,
        outline: Any,
        key: object = None,
        is_repeatable: bool = True,
        batch: Any = None,
    ) -> Any:
        """Call a function, and call it again if the death of a worker broke it off."""
        ...


class Batch(Protocol):
    """Batch that may lack rows."""

    def as_it_is(self) -> Any:
        """Return its nested tensors."""
        ...

    def expected(self) -> Any:
        """Return its nested tensors with the rows that a step is expected to need."""
        ...


Take = Callable[[Callable[[], Sequence[Any]]], Sequence[Any]]
"""Function that takes batches by another one, and may measure it."""


def repeat_calls(
    group: Group,
    packed_as: Callable[[Any, Sequence[Any]], Any],
    *,
    take: Take,
    take_in_loops: Take,
    batch_type: type[Batch],
) -> None:
    """Let calls that several workers compute together be made again after a death.

    Args:
        group: The workers.
        packed_as: Function that returns arrays in the structure of a function's results.
        take: Function that takes the batches of a training step of Keras.
        take_in_loops: Function that takes the batches of loops of the program.
        batch_type: Type of batches that may lack rows.
    """

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
                return original(function, *args, **kwargs)
            leaves = tf.nest.flatten((args, kwargs))
            batch = next((leaf for leaf in leaves if isinstance(leaf, batch_type)), None)

            def run() -> Any:
                given, named = _with_tensors((args, kwargs), batch, batch_type.expected)
                return original(function, *given, **named)

            args_now, kwargs_now = _with_tensors((args, kwargs), batch, batch_type.as_it_is)
            return group.call(
                run,
                outline=_Outline(function, args_now, kwargs_now, packed_as),
                key=function,
                is_repeatable=not any(isinstance(leaf, tf.data.Iterator) for leaf in leaves),
                batch=batch,
            )

        vars(call)["autograph_info__"] = {"artifact": True}
        return call

    def checked(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _read_variable_op(self: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly():
                group.check_read(self.handle)
            return original(self, *args, **kwargs)

        return _read_variable_op

    def stopping(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> None:
            restores = self.restore_best_weights
            if restores and name == "on_train_begin":
                group.hand_over(self, "best_weights")
            self.restore_best_weights = restores and not group.is_late
            try:
                original(self, *args, **kwargs)
            finally:
                self.restore_best_weights = restores

        return method

    _STOPPING.apply_by_name(stopping)
    _CALLS.apply(around)
    if group.is_late:
        _READS.apply(checked)
    _BATCHES.apply(lambda make: _with_batches(make, take, group.compare_state))
    _NEXT.apply(lambda original: _taken(original, take_in_loops))


def _with_tensors(
    arguments: Any, batch: Batch | None, tensors_of: Callable[[Batch], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments with the tensors of a batch in its place."""
    if batch is None:
        return arguments
    return tf.nest.map_structure(
        lambda leaf: tensors_of(leaf) if leaf is batch else leaf, arguments
    )


class _Outline:
    """Results of a traced function before it is called.

    Args:
        function: A `tf.function`.
        args: Its arguments.
        kwargs: Its keyword arguments.
        packed_as: See `repeat_calls`.
    """

    def __init__(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        packed_as: Callable[[Any, Sequence[Any]], Any],
    ) -> None:
        self._packed_as = packed_as
        self._concrete = functools.partial(function.get_concrete_function, *args, **kwargs)

    def trace(self) -> Sequence[Any]:
        """Trace the function; return the handles that it uses."""
        return [value for value in self._concrete().captured_inputs if value.dtype == tf.resource]

    def pack(self, arrays: Sequence[Any]) -> Any:
        """Return arrays in the structure of the results."""
        return self._packed_as(self._concrete().structured_outputs, arrays)


def _with_batches(
    make: Callable[..., Any], take: Take, end_epoch: Callable[[], None]
) -> Callable[..., Any]:
    """Return a replacement that takes the batches of a step before it calls it."""

    @functools.wraps(make)
    def _make_function(self: Any, step_function: Any) -> Callable[[Any], Any]:
        on_batches = make(self, step_function)
        is_training = getattr(step_function, "__name__", "") == "train_step"

        def function(iterator: Any) -> Any:
            def read() -> list[Any]:
                # A step that Python runs takes its batch itself.
                is_eager = self.run_eagerly or tf.config.functions_run_eagerly()
                of_own_rows = None if is_eager else getattr(iterator, "of_own_rows", None)
                source = iterator if of_own_rows is None else of_own_rows()
                return list(itertools.islice(source, self.steps_per_execution))

            with keras_reads():
                batches = take(read) if is_training else read()
            if not batches:
                end_epoch()
                raise StopIteration
            # Keras runs one step after another where it is not given an iterator of tf.data.
            return on_batches(iter(batches))

        return function

    return _make_function


def _taken(original: Callable[[Any], Any], take: Take) -> Callable[[Any], Any]:
    """Return a replacement of the next batch of an iterator that takes it by a function."""

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        if is_read_by_keras() or not is_main or not tf.executing_eagerly():
            return original(self)

        def read() -> list[Any]:
            try:
                return [original(self)]
            except StopIteration:
                return []

        batches = take(read)
        if not batches:
            raise StopIteration
        return batches[0]

    return __next__
