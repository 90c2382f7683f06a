"""Replacement of a worker: it runs the program from its beginning until it stands with the others.

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
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from evener.errors import RunError
from evener.workers.arrays import pack, unpack
from evener.workers.faults import nobody_tells, other_program
from evener.workers.results import CallResults
from evener.workers.view import View

_NEAR = 2
"""Number of calls that a replacement may be behind the others when it joins them."""
_MOST_ROUNDS = 20
"""Number of times that a replacement asks for results before it joins in any case."""
_LOOK_SECONDS = 0.2
"""Time between two looks for an exchange that the others have not finished."""


class Point(NamedTuple):
    """Point of the program between two calls or exchanges."""

    calls: int  # Number of calls with steps before it.
    exchanges: int  # Number of exchanges outside of steps before it.


class Outline(Protocol):
    """Structure of the results of a call, which is known before it is called."""

    def trace(self) -> Sequence[Any]:
        """Trace the function, so that its steps are known; return the handles that it uses."""
        ...

    def pack(self, arrays: Sequence[np.ndarray]) -> Any:
        """Return arrays in the structure of the results."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """State of a worker between two calls."""

    point: Point  # Point of the program at which it holds.
    done: int  # Number of calls with exchanges so far.
    # Variables of all steps, in the order of their tracing; None for those that are gone.
    values: tuple[np.ndarray | None, ...]

    def pack(self) -> np.ndarray:
        """Return the state as bytes."""
        there = [value is not None for value in self.values]
        head = {"point": self.point, "done": self.done, "there": there}
        text = np.frombuffer(json.dumps(head).encode(), np.uint8)
        return pack([[text], [value for value in self.values if value is not None]])

    @classmethod
    def unpack(cls, packed: np.ndarray) -> State:
        """Return the state that `pack` wrote."""
        [[text], values] = unpack(packed)
        head = json.loads(text.tobytes())
        rest = iter(values)
        return cls(
            point=Point(*head["point"]),
            done=head["done"],
            values=tuple(next(rest) if is_there else None for is_there in head["there"]),
        )


class Coordinator(Protocol):
    """Way to the coordinator."""

    def look(self) -> tuple[View | None, Mapping[str, list[Any]]]:
        """Return the newest view, and the values of all exchanges so far."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait, as long as this process has not given up."""
        ...


class Joining(Protocol):
    """The group that a replacement joins."""

    @property
    def view(self) -> View:
        """The view that it has joined."""
        ...

    @property
    def point(self) -> Point:
        """Point of the program at which it stands."""
        ...

    def ask(self, view: View, number: int) -> list[CallResults]:
        """Ask members of a view that have a state for the results of the calls from a number on."""
        ...

    def join(self) -> State:
        """Become a member; return the state that another one hands over."""
        ...


class Late:
    """Calls and exchanges that a replacement has missed.

    ``view`` is the view that the others are in; ``exchanged`` has the values of the exchanges
    outside of steps so far, by key. ``state``, which is handed over, is None before this worker has
    joined.
    """

    def __init__(self, view: View, member: Coordinator, exchanged: Mapping[str, list[Any]]) -> None:
        self.state: State | None = None
        self._view = view
        self._member = member
        self._exchanged = exchanged
        self._waiting: deque[CallResults] = deque()
        self._rounds = 0

    def stands_with_others(self, point: Point) -> bool:
        """Return whether the handed-over state holds at this point; RUN-095 if it is passed."""
        if self.state is None or point == self.state.point:
            return self.state is not None
        if any(own > theirs for own, theirs in zip(point, self.state.point, strict=True)):
            raise nobody_tells("The others have begun the job again.")
        return False

    def next_results(self, group: Joining) -> CallResults | None:
        """Return the results of the next call, or None when this worker has caught up.

        RUN-094 if the others make no call here, RUN-095 if no worker hands over the results.
        """
        while not self._waiting:
            if self.state is not None:
                raise other_program(f"no call behind call {group.point.calls} here")
            self._waiting += group.ask(self._view, group.point.calls)
            self._rounds += 1
            if len(self._waiting) <= _NEAR or self._rounds >= _MOST_ROUNDS:
                self._join(group)
                if self.stands_with_others(group.point):
                    return None
        return self._waiting.popleft()

    def _join(self, group: Joining) -> None:
        """Join the others, and fetch all that is missed until the point of their state.

        So nobody needs to live on until this worker comes there.
        """
        self.state = group.join()
        missed = self.state.point.calls - group.point.calls
        while len(self._waiting) < missed:
            number = group.point.calls + len(self._waiting)
            self._waiting += group.ask(group.view, number)
        while len(self._waiting) > max(missed, 0):
            self._waiting.pop()
        _, self._exchanged = self._member.look()

    def exchanged(self, key: str) -> list[Any]:
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
        """Wait at the end of the program, as no member, until the others have come to it.

        RUN-074 when they have, RUN-094 if they go on where this program ends, RUN-095 if none is
        left.
        """
        while True:
            if self.state is not None:
                raise other_program("calls or exchanges behind the end of its program")
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


def arrays_of(results: Any) -> list[np.ndarray]:
    """Return the tensors among nested results as arrays."""
    leaves = tf.nest.flatten(results, expand_composites=True)
    return [_array(leaf.numpy()) for leaf in leaves if isinstance(leaf, tf.Tensor)]


def packed_as(structure: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Return arrays, one for each tensor, in the structure of a function's results.

    RUN-094 if their number is another.
    """
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


def _array(value: Any) -> np.ndarray:
    return np.asarray(value, object) if isinstance(value, bytes) else np.asarray(value)
