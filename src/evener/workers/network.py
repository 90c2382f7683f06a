"""Network of a worker: its connections with the members of a view, and questions to others.

All threads, sockets and waits of a worker's recovery are behind `Network`, so that a test can put a
simulated one in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from evener.workers.connections import Listener, ask
from evener.workers.job import Job
from evener.workers.mesh import Mesh
from evener.workers.results import CallResults
from evener.workers.view import View
from evener.workers.wire import PeerLost

_CONNECT_SECONDS = 30.0
_ANSWER_SECONDS = 60.0
_PATIENCE_SECONDS = 2.0
"""Time after which another worker is asked too."""
_MARK = b"results"
"""Begin of each answer: an empty one says that a worker keeps no results."""


class Network:
    """Connections with the other workers."""

    def __init__(self, job: Job, listener: Listener, *, patience_seconds: float) -> None:
        self._job = job
        self._listener = listener
        self._patience = patience_seconds
        self._answered: str | None = None

    def nobody(self) -> Mesh:
        """Return a mesh without other members."""
        return Mesh(self._job.index, {}, patience_seconds=self._patience)

    def connect(self, view: View) -> Mesh:
        """Connect with all other members of a view.

        `PeerLost` if one of them does not answer, or the view is over.
        """
        deadline = time.monotonic() + _CONNECT_SECONDS
        self._listener.end(view.number - 1)
        others = [peer for peer in view.members if peer != self._job.index]
        for peer in others:
            if peer > self._job.index:
                self._listener.reach(
                    view.addresses[peer],
                    view=view.number,
                    index=self._job.index,
                    peer=peer,
                    deadline=deadline,
                )
        connections: dict[int, Any] = {}
        try:
            for peer in others:
                connections[peer] = self._listener.take(view.number, peer, deadline)
        except OSError as error:
            for connection in connections.values():
                connection.close()
            raise PeerLost(f"no connection to another worker: {error}") from error
        return Mesh(self._job.index, connections, patience_seconds=self._patience)

    def answer(self, results_since: Callable[[int], bytes]) -> None:
        """Answer replacements that ask for the results of calls, from a number on."""
        self._listener.answer = lambda question: _MARK + results_since(int(question["results"]))

    def ask(self, addresses: Sequence[str], number: int) -> list[CallResults]:
        """Ask other workers for the results from a call on; OSError if none answers."""
        # One that did not answer is frozen perhaps, and would be waited for each time.
        self._answered, found = ask(
            sorted(addresses, key=lambda address: address != self._answered),
            self._job.secret,
            {"results": number},
            seconds=_ANSWER_SECONDS,
            patience=_PATIENCE_SECONDS,
        )
        return CallResults.unpack_all(found[len(_MARK) :])

    def end(self, view: int) -> None:
        """End a view and all before: nobody connects for them any more. Safe from any thread."""
        self._listener.end(view)

    def is_over(self, view: int) -> bool:
        """Return whether a view has ended."""
        return self._listener.is_over(view)

    def close(self) -> None:
        """End the part of this worker in the network."""
        self._listener.close()
