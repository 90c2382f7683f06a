"""Replacement of a worker: it runs the program from its beginning until it is with the others.

::

    others         call 0 .. call 811 | call 812 .. save 3, rate = 0.1, call 815 | call 816
    replacement    traces the steps,    takes their results, saves nothing,        computes too,
                   takes results        assigns the rate itself                    in their state

Calls and exchanges that the others have finished are not made again: they return what the others
have had. So the program's own state, such as its position in the data, its callbacks and its
history, is what it would be. The variables are handed over with the *point* of the program at which
they hold: the numbers of calls and of exchanges outside of steps before it. They are assigned
there, and nowhere else: before it, what the program assigns would be done twice; behind it, undone.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import tensorflow as tf

from evener.errors import RunError
from evener.workers.connections import Listener, ask
from evener.workers.faults import nobody_tells, other_program
from evener.workers.job import Job
from evener.workers.member import Member
from evener.workers.mesh import Mesh, PeerLost, pack, unpack
from evener.workers.messages import View

LIMIT_BYTES = 256 << 20
"""Most bytes of results that are kept for replacements."""
_CONNECT_SECONDS = 30.0
_ANSWER_SECONDS = 60.0
_PATIENCE_SECONDS = 2.0
"""Time after which another worker is asked too."""
_NEAR = 2
"""Number of calls that a replacement may be behind the others when it joins them."""
_MOST_ROUNDS = 20
"""Number of times that a replacement asks for results before it joins in any case."""
_LOOK_SECONDS = 0.2
"""Time between two looks for an exchange that the others have not finished."""


class CallResults(NamedTuple):
    results: list[np.ndarray]  # Tensors among its results, in order.
    variables: list[np.ndarray]  # Values of the small variables that steps write, after the call.

    @classmethod
    def unpack_all(cls, packed: bytes) -> list[CallResults]:
        calls = msgspec.msgpack.decode(packed, type=list[bytes])
        return [cls(*unpack(np.frombuffer(call, np.uint8))) for call in calls]


class Results:
    """Results of the calls so far, in order; beyond ``limit_bytes``, nothing is kept any more."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._num_bytes = 0
        self._kept: list[bytes] | None = []
        self._count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def add(self, results: list[np.ndarray], variables: list[np.ndarray]) -> None:
        with self._lock:
            self._count += 1
            if self._kept is None:
                return
            # Many small arrays would take many times the bytes of their elements.
            self._kept.append(pack([results, variables]).tobytes())
            self._num_bytes += sys.getsizeof(self._kept[-1])
            if self._num_bytes > self._limit:
                self._kept = None

    def since(self, number: int) -> bytes:
        """Return the packed results from a call (from 0) on, never empty; RUN-093 if not kept."""
        with self._lock:
            if self._kept is None:
                raise RunError(
                    "RUN-093",
                    "A worker cannot be replaced any more.",
                    why=f"A replacement needs the results of all calls so far, and they take more "
                    f"than {self._limit >> 20} MiB.",
                    fix="The job goes on without it. Start it again from a checkpoint to have all "
                    "workers.",
                )
            return msgspec.msgpack.encode(self._kept[number:])


class Network(Listener):
    """Connections of a worker with the members of a view, and questions to others.

    All threads, sockets and waits of a worker's recovery are here, so that a test can put a
    simulated network in its place.
    """

    def __init__(self, job: Job, host: str) -> None:
        super().__init__(host, job.secret)
        self._job = job
        self._answered: str | None = None

    def nobody(self) -> Mesh:
        return Mesh(self._job.index, {}, patience_seconds=self._job.patience_seconds)

    def connect(self, view: View) -> Mesh:
        """Connect with the others; `PeerLost` if one does not answer, or the view is over."""
        deadline = time.monotonic() + _CONNECT_SECONDS
        index, number = self._job.index, view.number
        self.end(number - 1)
        others = [peer for peer in view.members if peer != index]
        for peer in others:
            if peer > index:
                address = view.addresses[peer]
                self.reach(address, view=number, index=index, peer=peer, deadline=deadline)
        connections: dict[int, Any] = {}
        try:
            for peer in others:
                connections[peer] = self.take(number, peer, deadline)
        except OSError as error:
            for connection in connections.values():
                connection.close()
            raise PeerLost(f"no connection to another worker: {error}") from error
        return Mesh(index, connections, patience_seconds=self._job.patience_seconds)

    def ask(self, addresses: Sequence[str], number: int) -> list[CallResults]:
        """Ask other workers for the results from a call on; OSError if none answers."""
        # One that did not answer is frozen perhaps, and would be waited for each time.
        self._answered, answer = ask(
            sorted(addresses, key=lambda address: address != self._answered),
            self._job.secret,
            {"results": number},
            seconds=_ANSWER_SECONDS,
            patience=_PATIENCE_SECONDS,
        )
        return CallResults.unpack_all(answer)


class Point(NamedTuple):
    """Point of the program between two calls or exchanges."""

    calls: int  # Number of calls with steps before it.
    exchanges: int  # Number of exchanges outside of steps before it.


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    point: Point  # Point of the program at which it holds.
    done: int  # Number of calls with exchanges so far.
    # Variables of all steps, in the order of their tracing; None for those that are gone.
    values: tuple[np.ndarray | None, ...]
    # Exchanges of the last call, while a member has not finished it; otherwise none.
    log: list[list[np.ndarray]] = field(default_factory=list[list[np.ndarray]])

    def pack(self) -> np.ndarray:
        head = {"point": self.point, "done": self.done, "num_values": len(self.values)}
        text = np.frombuffer(json.dumps(head).encode(), np.uint8)
        values = [[] if value is None else [value] for value in self.values]
        return pack([[text], *values, *self.log])

    @classmethod
    def unpack(cls, packed: np.ndarray) -> State:
        [[text], *rest] = unpack(packed)
        head = json.loads(text.tobytes())
        count = head["num_values"]
        values = tuple(value[0] if value else None for value in rest[:count])
        return cls(point=Point(*head["point"]), done=head["done"], values=values, log=rest[count:])


class ResultOutline(Protocol):
    """Structure of the results of a call, which is known before it is called."""

    def trace(self) -> Sequence[Any]:
        """Trace the function, so that its steps are known; return the handles that it uses."""
        ...

    def pack(self, arrays: Sequence[np.ndarray]) -> Any: ...


class Joining(Protocol):
    """Group to which a replacement comes."""

    view: View  # The view that it has joined.

    @property
    def point(self) -> Point: ...

    def ask(self, view: View, number: int) -> list[CallResults]: ...

    def join(self) -> State: ...


class Late:
    def __init__(self, view: View, member: Member, exchanged: Mapping[str, list[Any]]) -> None:
        self.state: State | None = None
        self._view, self._member, self._exchanged = view, member, exchanged
        self._waiting: deque[CallResults] = deque()
        self._rounds = 0

    def is_with_others(self, point: Point) -> bool:
        """Return whether the handed-over state holds at this point; RUN-095 if it is passed."""
        if self.state is None or point == self.state.point:
            return self.state is not None
        if any(own > theirs for own, theirs in zip(point, self.state.point, strict=True)):
            raise nobody_tells("The others have begun the job again.")
        return False

    def next_results(self, group: Joining) -> CallResults | None:
        """Return the results of the next call, or None when this worker has caught up."""
        while not self._waiting:
            if self.state is not None:
                raise other_program(f"no call behind call {group.point.calls} here")
            self._waiting += group.ask(self._view, group.point.calls)
            self._rounds += 1
            if len(self._waiting) <= _NEAR or self._rounds >= _MOST_ROUNDS:
                self._join(group)
                if self.is_with_others(group.point):
                    return None
        return self._waiting.popleft()

    def _join(self, group: Joining) -> None:
        self.state = group.join()
        missed = self.state.point.calls - group.point.calls
        while len(self._waiting) < missed:
            self._waiting += group.ask(group.view, group.point.calls + len(self._waiting))
        while len(self._waiting) > max(missed, 0):
            self._waiting.pop()
        _, self._exchanged = self._member.look()

    def exchange(self, key: str) -> list[Any]:
        """Return the values of an exchange outside of steps that the others finish.

        They do not wait for this worker before it has joined, so it waits for them. RUN-094 if the
        others do not make the exchange, RUN-095 if none of them is left.
        """
        while key not in self._exchanged:
            view, self._exchanged = self._member.look()
            if key in self._exchanged:
                break
            if self.state is not None:
                raise other_program(f"no exchange {key!r} here")
            self._wait(view)
        return self._exchanged[key]

    def wait_for_end(self) -> None:
        """Wait at the end of the program, as no member, until the others have come to it."""
        if self.state is not None:
            raise other_program("calls or exchanges behind the end of its program")
        while True:
            view, _ = self._member.look()
            self._wait(view)

    def _wait(self, view: View | None) -> None:
        if view is None:
            raise nobody_tells("They have ended, and the job begins again.")
        self._member.pause(_LOOK_SECONDS)


@contextmanager
def ends_with_the_job() -> Iterator[None]:
    """Exit with 0 instead of RUN-074: the job is over and its work done, so this is no error."""
    try:
        yield
    except RunError as error:
        if error.code != "RUN-074":
            raise
        print(f"evener: {error.what} {error.why}", file=sys.stderr)
        raise SystemExit(0) from None


def packable(tensor: Any) -> np.ndarray:
    """Return a tensor or a variable as `pack` takes it: an array of numbers, or of byte strings."""
    value = tensor.numpy()
    return np.asarray(value, object) if isinstance(value, bytes) else np.asarray(value)


def tensors_as_arrays(results: Any) -> list[np.ndarray]:
    leaves = tf.nest.flatten(results, expand_composites=True)
    return [packable(leaf) for leaf in leaves if isinstance(leaf, tf.Tensor)]


def pack_results(structure: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Return arrays, one for each tensor, in the structure of a function's results."""
    leaves = tf.nest.flatten(structure, expand_composites=True)
    kinds = (tf.Tensor, tf.TensorSpec)
    expected = sum(isinstance(leaf, kinds) for leaf in leaves)
    if expected != len(arrays):
        raise other_program(f"{len(arrays)} results of a call instead of {expected}")
    rest = iter(arrays)
    values = [
        tf.constant(next(rest), leaf.dtype) if isinstance(leaf, kinds) else leaf for leaf in leaves
    ]
    return tf.nest.pack_sequence_as(structure, values, expand_composites=True)
