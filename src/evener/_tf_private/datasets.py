"""Datasets and their iterators: loops over them in traced functions, and the batches they give."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import tensorflow as tf

from evener._tf_private.autograph import converted_as_by, leave_to_autograph
from evener._tf_private.patches import Patch

RunBody: TypeAlias = "Callable[[Callable[[Any], Any], Any], Any]"
"""Called with the body of a loop, as a function of a batch, and the batch; returns its results."""

_here = threading.local()


_LOOPS = Patch(
    "loops over datasets",
    *(
        f"tensorflow.python.autograph.operators.control_flow:for_loop_registry._registry[{kind}]"
        for kind in ("DatasetV2", "OwnedIterator")
    ),
    why="A traced function that loops over its data holds all steps in one operation. AutoGraph "
    "has a registry of how to loop over what, and no public name for it.",
    if_it_changes="Such functions train on one device, and `evener run` says so at its end.",
)


@contextlib.contextmanager
def running_bodies(run: RunBody | None) -> Iterator[None]:
    """Let bodies of loops over datasets be run by ``run``, where this thread traces them.

    Args:
        run: Function that runs a body; None for bodies as they are written.
    """
    _LOOPS.apply(_with_other_body)
    before, _here.run = getattr(_here, "run", None), run
    try:
        yield
    finally:
        _here.run = before


def _with_other_body(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def for_stmt(
        feed: Any, extra_test: Any, body: Any, get_state: Any, set_state: Any, *rest: Any
    ) -> None:
        run = getattr(_here, "run", None)
        if run is not None:
            body = _run_by(run, body, get_state, set_state)
        original(feed, extra_test, body, get_state, set_state, *rest)

    return for_stmt


def _run_by(run: RunBody, body: Any, get_state: Any, set_state: Any) -> Callable[[Any], None]:
    """Return a body that gives a function of a batch and the batch to ``run``."""

    def run_body(iterate: Any) -> None:
        # AutoGraph keeps the variables of a loop, as tensors, in names that the body closes over:
        # the body begins with those of the graph around it, whenever it is traced.
        before = get_state()

        def step(batch: Any) -> Any:
            set_state(before)
            # A loop in a loop is part of the step.
            with running_bodies(None):
                body(batch)
            return get_state()

        # Its body has been converted.
        step.autograph_info__ = {"artifact": True}  # pyright: ignore[reportFunctionMemberAccess]
        set_state(run(step, iterate))

    return run_body


_TAKEN = Patch(
    "batches that functions take",
    "tensorflow.python.data.ops.iterator_ops:OwnedIterator._next_internal",
    why="What a traced function computes of a batch that it takes is a step of that batch.",
    if_it_changes="Such functions train on one device, and `evener run` says so at its end.",
)


class _Batch(BaseException):
    """Ends the trace of a function at the first batch that it takes; no program catches it."""


def take_batches(function: Any) -> None:
    """Let `running_bodies` run what a `tf.function` computes of the first batch that it takes.

    The trace ends where it takes a batch, and begins anew as a body that is given the batch.

    Why: a script's own `tf.function` can be decorated until it is traced, by a private method.
    If it changes: as for the patch.
    """

    def decorate(original: Callable[..., Any]) -> Callable[..., Any]:
        # The decorators of TensorFlow's that are noted at the original do not lie around this one.
        @functools.wraps(original, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            run = getattr(_here, "run", None)
            body = converted_as_by(function, original)
            if run is None or tf.executing_eagerly():
                return body(*args, **kwargs)
            _TAKEN.apply(_given_or_taken)
            _here.graph = tf.compat.v1.get_default_graph()
            try:
                return body(*args, **kwargs)
            except _Batch as taken:
                iterator, batch = taken.args
            finally:
                _here.graph = None

            def step(batch: Any) -> Any:
                _here.given = (iterator, batch)
                # Further batches, and loops over data, are part of the step.
                with running_bodies(None):
                    results, _here.given = body(*args, **kwargs), None
                return results

            leave_to_autograph(step)
            return run(step, batch)

        leave_to_autograph(call)
        return call

    if not function._jit_compile:
        with contextlib.suppress(ValueError):
            function._decorate(decorate)


def _given_or_taken(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def next_internal(iterator: Any) -> Any:
        given = getattr(_here, "given", None)
        if given is not None and given[0] is iterator:
            _here.given = None
            return given[1]
        graph: Any = tf.compat.v1.get_default_graph()
        # What changes state before would do so twice; a batch in a condition is not always taken.
        is_first = graph is getattr(_here, "graph", None) and not any(
            op.op_def.is_stateful and op.type != "ReadVariableOp" for op in graph.get_operations()
        )
        _here.graph, batch = None, original(iterator)
        if is_first:
            raise _Batch(iterator, batch)
        return batch

    return next_internal


_ITERATORS = (
    "tensorflow.python.data.ops.iterator_ops:OwnedIterator",
    "tensorflow.python.distribute.input_lib:DistributedIteratorBase",
)
_NEXT = ("__next__", "get_next", "get_next_as_optional")
NEXT_BATCHES = Patch(
    "batches of iterators",
    *(f"{kind}.{name}" for kind in _ITERATORS for name in _NEXT),
    why="To time the wait for batches, in Python and in graphs. The classes have no public names.",
    if_it_changes="The doctor takes all pipelines to be quick.",
)
