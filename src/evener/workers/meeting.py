"""Begin of a view: its members connect, and one of them gives what others need."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from evener.workers.connections import Listener
from evener.workers.job import Job
from evener.workers.mesh import Mesh
from evener.workers.view import View
from evener.workers.wire import PeerLost

_CONNECT_SECONDS = 30.0


def connect_members(job: Job, listener: Listener, view: View, *, patience_seconds: float) -> Mesh:
    """Connect with all other members of a view.

    Args:
        job: Part of this process in the job.
        listener: Listener of this worker.
        view: The members.
        patience_seconds: Seconds that an exchange may wait for workers that are alive.

    Raises:
        PeerLost: If one of them does not answer, or the view is over.
    """
    deadline = time.monotonic() + _CONNECT_SECONDS
    listener.end(view.number - 1)
    others = [peer for peer in view.members if peer != job.index]
    for peer in others:
        if peer > job.index:
            listener.reach(
                view.addresses[peer],
                view=view.number,
                index=job.index,
                peer=peer,
                deadline=deadline,
            )
    connections: dict[int, Any] = {}
    try:
        for peer in others:
            connections[peer] = listener.take(view.number, peer, deadline)
    except OSError as error:
        for connection in connections.values():
            connection.close()
        raise PeerLost(f"no connection to another worker: {error}") from error
    return Mesh(job.index, connections, patience_seconds=patience_seconds)


def told_by_all(mesh: Mesh, own: Any) -> dict[int, Any]:
    """Return a JSON value of each member.

    Raises:
        PeerLost: If the view is over.
    """
    text = np.frombuffer(json.dumps(own).encode(), np.uint8)
    found = mesh.gather("common state", text)
    return {
        index: json.loads(told.tobytes()) for index, told in zip(mesh.members, found, strict=True)
    }


def giver_of(view: View) -> int:
    """Return the member whose state the others take over: one that has finished most calls."""
    most = max(view.done.values())
    return min(index for index, done in view.done.items() if done == most)
