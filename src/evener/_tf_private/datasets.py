"""Datasets and their iterators: loops over them in traced functions, and the batches they give."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

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
