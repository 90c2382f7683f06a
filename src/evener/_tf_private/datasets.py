"""Datasets and their iterators: loops over them in traced functions, and the batches they give."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from tensorflow.python.autograph.operators import control_flow
from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.distribute import input_lib

from evener._tf_private.patches import Wrap

RunBody: TypeAlias = "Callable[[Callable[[Any], Any], Any], Any]"
"""Called with the body of a loop, as a function of a batch, and the batch; returns its results."""

_FEEDS = (dataset_ops.DatasetV2, iterator_ops.OwnedIterator)
_here = threading.local()
_lock = threading.Lock()
_is_replaced = False


@contextlib.contextmanager
def running_bodies(run: RunBody | None) -> Iterator[None]:
    """Let bodies of loops over datasets be run by ``run``, where this thread traces them.

    Why: a traced function that loops over its data holds all steps in one operation. AutoGraph has
    a registry of how to loop over what, and no public name for it.
    If it changes: such functions train on one device, and `evener run` says so at its end.

    Args:
        run: Runs a body; None for bodies as they are written.
    """
    _replace_once()
    before, _here.run = getattr(_here, "run", None), run
    try:
        yield
    finally:
        _here.run = before


def _replace_once() -> None:
    global _is_replaced
    with _lock:
        if _is_replaced:
            return
        _is_replaced = True
        registry = control_flow.for_loop_registry._registry
        for kind in _FEEDS:
            registry[kind] = _with_other_body(registry[kind])


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


def replace_next_batches(wrap: Wrap) -> None:
    """Replace the functions by which iterators of `tf.data` and `tf.distribute` give a batch.

    Why: to time the wait for batches, in Python and in graphs. The classes have no public
    names. If it changes: the doctor takes all pipelines to be quick.
    """
    for kind in (iterator_ops.OwnedIterator, input_lib.DistributedIteratorBase):
        for name in ("__next__", "get_next", "get_next_as_optional"):
            setattr(kind, name, wrap(getattr(kind, name)))
