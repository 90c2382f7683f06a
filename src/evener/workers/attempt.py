"""One attempt of a call: its exchanges, and how its writes are put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from evener.errors import RunError
from evener.workers.fingerprints import Arrays
from evener.workers.mesh import Mesh
from evener.workers.own_rows import BatchOfOwnRows, Rows, RowsMissing
from evener.workers.wire import PeerLost

Log = list[list[np.ndarray]]
"""Results of the exchanges of a call, in order."""


@dataclass(slots=True)
class Attempt:
    """One attempt of a call."""

    log: Log = field(default_factory=list)  # Results of its exchanges so far.
    replayed: Log | None = None  # Results of the exchanges that another worker has handed over.
    is_compared: bool = False  # Whether its batch is compared with those of the other workers.
    state: Arrays | None = None  # Values of all variables before it, if they are compared too.
    # Handles and values of the variables that are written before the last exchange.
    kept: list[tuple[Any, np.ndarray]] = field(default_factory=list)
    # One object for each kernel that has drawn random numbers.
    drawn: list[object] = field(default_factory=list)
    num_commits: int = 0
    is_repeatable: bool = True  # Whether the variables can be restored.
    failure: PeerLost | None = None  # Loss of a worker that interrupted it.
    error: RunError | None = None  # Error of another kind that ends the program.
    lacks_rows: bool = False  # Whether it stopped because rows of its batch were not mapped.

    def begin_step(
        self, handles: Sequence[Any], values: Sequence[np.ndarray], *, is_repeatable: bool
    ) -> None:
        """Begin a step; the handles are of variables that it may write before its last exchange.

        It is repeatable if it writes nothing else before that exchange.
        """
        # Behind the commit of another step, variables are written.
        self.is_repeatable &= is_repeatable and not self.num_commits
        self.kept += zip(handles, values, strict=True)

    def need(self, batch: BatchOfOwnRows, rows: Rows) -> None:
        """Stop the attempt if some rows of the batch are not mapped."""
        try:
            batch.check(rows)
        except RowsMissing:
            self.lacks_rows = True
            raise

    def exchange(
        self, mesh: Mesh, exchange: Callable[[Mesh], list[np.ndarray]]
    ) -> list[np.ndarray]:
        """Return the results of the next exchange."""
        try:
            found = exchange(mesh) if self.replayed is None else self.replayed[len(self.log)]
        except PeerLost as error:
            self.failure = error
            raise
        except RunError as error:
            self.error = error
            raise
        self.log.append(found)
        return found

    def put_back(self, error: tf.errors.OpError) -> None:
        """Restore what the attempt has written, or raise RUN-092 if that is not possible."""
        if self.num_commits or not self.is_repeatable:
            raise RunError(
                "RUN-092",
                f"A step cannot be computed again: {self.failure}.",
                why="Another worker is gone, and the function has computed several steps, or has "
                "written what is no variable.",
                fix="Start the job again from its newest checkpoint; or call one step in each "
                "tf.function.",
            ) from error
        for handle, value in self.kept:
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value))
