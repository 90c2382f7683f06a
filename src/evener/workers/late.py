"""Replacement of a worker: it runs the program from its beginning until it stands with the others.

::

    others         call 0 .. call 811 | call 812 .. call 815 | call 816
    replacement    traces the steps,    the rest of them,      computes too, with the
                   takes results                               variables of the others

Calls that the others have finished are not computed: they return the results that the others have
had. So the program's own state, such as its position in the data, its callbacks and its history,
is what it would be, and the variables are handed over last.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from evener.workers.arrays import pack, unpack
from evener.workers.connections import ask
from evener.workers.faults import nobody_tells, other_program
from evener.workers.results import CallResults
from evener.workers.view import View

_NEAR = 2
"""Number of calls that a replacement may be behind the others when it joins them."""
_MOST_ROUNDS = 20
"""Number of times that a replacement asks for results before it joins in any case."""
_ANSWER_SECONDS = 60.0
_PATIENCE_SECONDS = 2.0
"""Time after which another worker is asked too."""
_LOOK_SECONDS = 0.2
"""Time between two looks for an exchange that the others have not finished."""


class Outline(Protocol):
    """Structure of the results of a call, which is known before it is called."""

    def trace(self) -> Sequence[Any]:
        """Trace the function, so that its steps are known; return the handles that it uses."""
        ...

    def pack(self, arrays: Sequence[np.ndarray]) -> Any:
        """Return arrays in the structure of the results."""
        ...


class Joining(Protocol):
    """The group that a replacement joins."""

    view: View

    def join(self) -> State:
        """Become a member."""
        ...

    def take_over(self, state: State) -> None:
        """Assign the values of variables."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """State of a worker between two calls.

    Attributes:
        done: Number of calls with exchanges so far.
        made: Number of calls so far.
        chief: Number of the chief.
        values: Values of the variables of all steps, in the order of their tracing; None for those
            that are gone.
    """

    done: int
    made: int
    chief: int
    values: tuple[np.ndarray | None, ...]

    def pack(self) -> np.ndarray:
        """Return the state as bytes."""
        head = {
            "done": self.done,
            "made": self.made,
            "chief": self.chief,
            "there": [value is not None for value in self.values],
        }
        text = np.frombuffer(json.dumps(head).encode(), np.uint8)
        return pack([[text], [value for value in self.values if value is not None]])

    @classmethod
    def unpack(cls, packed: np.ndarray) -> State:
        """Return the state that `pack` made bytes of."""
        [[text], values] = unpack(packed)
        head = json.loads(text.tobytes())
        rest = iter(values)
        return cls(
            done=head["done"],
            made=head["made"],
            chief=head["chief"],
            values=tuple(next(rest) if is_there else None for is_there in head["there"]),
        )


class Looking(Protocol):
    """Way to the coordinator."""

    def look(self) -> tuple[View | None, Mapping[str, list[Any]]]:
        """Return the newest view, and the values of all exchanges so far."""
        ...


class Late:
    """Calls that a replacement has missed.

    Args:
        view: View that the others are in.
        secret: Secret of the job.
        exchanged: Values of the exchanges outside of steps so far, by key.
    """

    def __init__(self, view: View, secret: bytes, exchanged: Mapping[str, list[Any]]) -> None:
        self._exchanged = exchanged
        self._view = view
        self._secret = secret
        self._waiting: deque[CallResults] = deque()
        self._count = 0
        self._rounds = 0
        self._state: State | None = None
        self._answered: str | None = None

    def next_results(self, group: Joining) -> CallResults | None:
        """Return the results of the next call; None when this worker stands with the others.

        Args:
            group: The group that is joined on the way.
        """
        while True:
            # The others may have made calls since, which need nobody else.
            if self._state is not None and self._count == self._state.made:
                group.take_over(self._state)
                return None
            if self._waiting:
                break
            self._fetch(self._view if self._state is None else group.view)
            self._rounds += 1
            is_near = len(self._waiting) <= _NEAR or self._rounds >= _MOST_ROUNDS
            if self._state is None and is_near:
                self._state = group.join()
                if self._state.made < self._count:
                    raise nobody_tells("The others have begun the job again.")
        self._count += 1
        return self._waiting.popleft()

    def exchanged(self, key: str, member: Looking, timeout_seconds: float) -> list[Any] | None:
        """Return the values of an exchange outside of steps that the others have finished.

        Before this worker has joined, they do not wait for it, so it waits until they have.

        Args:
            key: Key of the exchange.
            member: Way to the coordinator, which knows the values.
            timeout_seconds: Time to wait for the others.

        Returns:
            Values; None if this worker has joined, and the others wait for its value.

        Raises:
            RunError: RUN-095 if the others do not come to it.
        """
        deadline = time.monotonic() + timeout_seconds
        while key not in self._exchanged:
            _, self._exchanged = member.look()
            if key in self._exchanged:
                break
            if self._state is not None:
                return None
            if time.monotonic() >= deadline:
                raise nobody_tells(
                    f"They do not come to the exchange {key!r} within {timeout_seconds:g} seconds."
                )
            time.sleep(_LOOK_SECONDS)
        return self._exchanged[key]

    def _fetch(self, view: View) -> None:
        """Ask the others for the results from the next call on."""
        # Those who join with this worker know no more than it.
        others = [view.addresses[index] for index in sorted({*view.members} - {*view.joined})]
        # One that did not answer is frozen perhaps, and would be waited for each time.
        others.sort(key=lambda address: address != self._answered)
        question = {"results": self._count}
        try:
            self._answered, found = ask(
                others,
                self._secret,
                question,
                seconds=_ANSWER_SECONDS,
                patience=_PATIENCE_SECONDS,
            )
        except OSError as error:
            raise nobody_tells(str(error) or "none of them is there") from error
        arrays = iter(unpack(np.frombuffer(found, np.uint8)))
        self._waiting.extend(map(CallResults, arrays, arrays))


def arrays_of(results: Any) -> list[np.ndarray]:
    """Return the tensors among nested results as arrays."""
    leaves = tf.nest.flatten(results, expand_composites=True)
    return [_array(leaf.numpy()) for leaf in leaves if isinstance(leaf, tf.Tensor)]


def packed_as(structure: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Return arrays in the structure of a function's results.

    Args:
        structure: Nested results of the traced function: tensors or their specs, other values.
        arrays: One for each tensor.

    Raises:
        RunError: RUN-094 if their number is another.
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
