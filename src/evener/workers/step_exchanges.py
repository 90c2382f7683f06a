"""Exchanges of a step, as its graph calls them: sums, rows, random numbers, fingerprints."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evener.errors import RunError
from evener.workers.arrays import lengths_of, strings_of
from evener.workers.attempt import Attempt
from evener.workers.faults import other_states
from evener.workers.fingerprints import (
    Arrays,
    check_fingerprints,
    digest,
    fingerprint,
    summarize,
)
from evener.workers.mesh import Mesh
from evener.workers.own_rows import BatchOfOwnRows, Rows
from evener.workers.view import View
from evener.workers.wire import PeerLost


class StepExchanges:
    """Exchanges that the steps of a worker call, between two workers or more."""

    def __init__(self, mesh: Mesh, view: View) -> None:
        self._mesh = mesh
        self._call = Attempt()
        self._batch: BatchOfOwnRows | None = None
        self._draws: dict[object, deque[list[np.ndarray]]] = {}
        self._done = 0
        self.view = view
        # Number of the first worker that lives: it draws random numbers.
        self.chief = min(view.members)

    def begin(self, handles: list[Any], *, is_repeatable: bool) -> Callable[..., None]:
        """Return the function that a step calls, with values of variables, before it exchanges."""

        def begun(needed: Rows, *values: np.ndarray) -> None:
            self._call.begin_step(handles, values, is_repeatable=is_repeatable)
            if self._batch is not None:
                # What cannot be begun again has to have all rows that it may ever need.
                self._call.need(self._batch, needed if is_repeatable else np.ones_like(needed))

        return begun

    def is_compared(self) -> np.bool_:
        """Return whether the fingerprints of this batch are compared."""
        return np.bool_(self._call.is_compared)

    def compare(self, batch: Sequence[np.ndarray]) -> np.bool_:
        """Compare a batch with those of the other workers, and the state before it if that is due.

        RUN-096 if the batches differ, RUN-079 if the states do.
        """
        shown = batch if self._batch is None else self._batch.elements
        own = fingerprint([*map(np.asarray, shown)])
        found = self._exchange(lambda mesh: mesh.gather("fingerprints", own))
        try:
            check_fingerprints(found, self.view.members, self._done)
            if self._call.state is not None:
                self._compare_states(self._call.state)
        except RunError as error:
            self._call.error = error
            raise
        return np.True_

    def _compare_states(self, state: Arrays) -> None:
        own = np.asarray([digest(state)])
        digests = self._exchange(lambda mesh: mesh.gather("digests", own))
        if all(np.array_equal(each, own) for each in digests):
            return
        text = np.frombuffer(json.dumps(summarize(state)).encode(), np.uint8)
        told = self._exchange(lambda mesh: mesh.gather("states", text))
        summaries = (json.loads(each.tobytes()) for each in told)
        error = other_states(dict(zip(self.view.members, summaries, strict=True)))
        if error is not None:
            raise error

    def commit(self) -> None:
        """Note that all exchanges of a step are over."""
        self._call.num_commits += 1

    def reduce(self, label: str, arrays: list[np.ndarray], combine: str) -> list[np.ndarray]:
        """Combine arrays of all workers, which have the same shapes and one type."""
        return self._exchange(lambda mesh: mesh.reduce(label, arrays, combine))

    def gather(self, label: str, array: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of all workers, in their order; their sizes may differ."""
        if array.dtype == object:
            # Strings: their lengths, and their bytes.
            lengths = self.gather(f"{label} lengths", lengths_of(array))
            joined = b"".join(array.reshape(-1).tolist())
            texts = self.gather(f"{label} bytes", np.frombuffer(joined, np.uint8))
            return [*map(strings_of, lengths, texts)]
        return self._exchange(lambda mesh: mesh.gather(label, array))

    def draw(self, label: str, arrays: list[np.ndarray], kernel: object) -> list[np.ndarray]:
        """Return random numbers that the chief has drawn, for all.

        A call that is made again draws again. So each call takes the first numbers that no call has
        used, and a generator with a seed gives those of one device.
        """
        queue = self._draws.setdefault(kernel, deque())
        queue.append(arrays)
        self._call.drawn.append(kernel)
        return self._exchange(lambda mesh: mesh.broadcast(label, queue[0], self.chief))

    def reduce_if_there(self, label: str, array: np.ndarray, combine: str) -> np.ndarray | None:
        """Combine an array after the commit of a step; return None if a worker is gone.

        Its purpose has to be told anew to all workers when the members change.
        """
        if self._call.replayed is not None:
            return None
        try:
            return self._mesh.reduce(label, [array], combine)[0]
        except PeerLost:
            return None

    def _exchange(self, exchange: Callable[[Mesh], list[np.ndarray]]) -> list[np.ndarray]:
        return self._call.exchange(self._mesh, exchange)
