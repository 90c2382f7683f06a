"""Steps of Keras's ``fit``, seen where it calls its callbacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from evener._tf_private.patches import Patch
from evener.doctor.watch.observation import Line
from evener.doctor.watch.probes.ending import own_line
from evener.doctor.watch.probes.entries import Entries
from evener.doctor.watch.probes.functions import Functions
from evener.doctor.watch.probes.progress import Progress
from evener.doctor.watch.probes.waiting import Waiting

_CALLBACKS = Patch(
    "callbacks of a watched program",
    *(
        f"keras:callbacks.CallbackList.{name}"
        for name in (
            "on_train_begin",
            "on_train_batch_begin",
            "on_train_batch_end",
            "on_train_end",
        )
    ),
    why="Steps of ``fit`` begin and end there, whatever callbacks the program passes.",
    if_it_changes="The doctor sees no steps of ``fit``.",
)


class Fitting:
    """Times the steps of ``fit``, callbacks and the wait for batches included.

    Args:
        progress: Takes note of steps.
        waiting: Knows how long batches were waited for.
        entries: Knows whether something was traced; steps of loops do not count in ``fit``.
        functions: Keeps the number of replicas.
    """

    def __init__(
        self, progress: Progress, waiting: Waiting, entries: Entries, functions: Functions
    ) -> None:
        self._functions = functions
        self._progress = progress
        self._waiting = waiting
        self._entries = entries
        self._where: Line | None = None
        self._first_step = 0
        self._began = 0.0
        self._waited = 0.0

    def watch(self) -> None:
        """Begin to notice steps of every model."""
        around = {
            "on_train_begin": self._train_begins,
            "on_train_batch_begin": self._batch_begins,
            "on_train_batch_end": self._batch_ends,
            "on_train_end": self._train_ends,
        }
        _CALLBACKS.apply_by_name(lambda original, name: _replaced(original, around[name]))

    def _train_begins(self, call: Callable[[], Any], callbacks: Any, *_: Any, **__: Any) -> Any:
        strategy = getattr(callbacks.model, "distribute_strategy", None)
        self._functions.use(strategy)
        self._entries.in_fit = True
        self._where = own_line()
        self._entries.where = self._where
        return call()

    def _train_ends(self, call: Callable[[], Any], *_: Any, **__: Any) -> Any:
        self._entries.in_fit = False
        return call()

    def _batch_begins(
        self, call: Callable[[], Any], _: Any, batch: int, *__: Any, **___: Any
    ) -> Any:
        self._first_step = int(batch)
        self._waited = self._waiting.seconds()
        self._entries.traced = False
        self._began = self._progress.clock()
        return call()

    def _batch_ends(self, call: Callable[[], Any], _: Any, batch: int, *__: Any, **___: Any) -> Any:
        result = call()
        self._progress.stepped(
            num_steps=max(1, int(batch) - self._first_step + 1),
            seconds=self._progress.clock() - self._began,
            input_seconds=self._waiting.seconds() - self._waited,
            traced=self._entries.traced,
            where=self._where,
        )
        return result


def _replaced(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self, *args, **kwargs)
        return around(call, self, *args, **kwargs)

    return replacement
