"""Group of the workers that compute each step together, seen by one of them.

::

    call ──► exchange ──► exchange ──► commit ──► writes of variables ──► next call
               │  a worker dies
               └──► next view ──► the same call again, by those who remain

Variables that a step writes before its commit are put back before the step is computed again. If
some workers had finished the call and others had not, those that had hand over the results of its
exchanges; the others compute it with them. So all workers have the same bits again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf

from evener.errors import RunError
from evener.workers import faults
from evener.workers.attempt import Attempt, Log
from evener.workers.fingerprints import digest, is_compared, summarize
from evener.workers.job import Job
from evener.workers.late import Late, Outline, arrays_of, ends_with_the_job
from evener.workers.member import Member
from evener.workers.network import Network
from evener.workers.own_rows import BatchOfOwnRows
from evener.workers.recovery import Recovery
from evener.workers.view import View, ViewOver

R = TypeVar("R")


@dataclass(slots=True)
class _Scope:
    """The outermost call of a thread."""

    key: Any  # Object that stands for the function.
    is_repeatable: bool  # Whether the function may be called again.
    has_steps: bool = False  # Whether steps are a part of it.


class Group(Recovery):
    """Workers of a job, which may become fewer.

    A replacement begins with the view that the others are in, and with the calls that it has missed
    (``late``); a worker that is there from the start has no ``late``.
    """

    def __init__(
        self, job: Job, member: Member, network: Network, view: View, *, late: Late | None = None
    ) -> None:
        super().__init__(job, member, network, view)
        self._with_steps: weakref.WeakSet[Any] = weakref.WeakSet()
        self._local = threading.local()
        self._is_asked = False
        self._compared_at = 0
        self._before_steps: list[Callable[[], object]] = []
        self._late = late

    @property
    def index(self) -> int:
        """Number of this worker, from 0."""
        return self._job.index

    @property
    def incarnation(self) -> int:
        """Number of restarts of this worker."""
        return self._job.incarnation

    @property
    def count(self) -> int:
        """Number of workers at the start of the job."""
        return self._job.count

    @property
    def is_late(self) -> bool:
        """Whether this worker is a replacement that does not stand with the others yet."""
        return self._late is not None

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the first one that lives: it writes files and prints."""
        return self._job.index == self.chief

    def track(self, variable: tf.Variable, *, is_written: bool) -> None:
        """Take note of a variable of a step; steps are traced in the same order everywhere."""
        self._variables.add(variable, is_written=is_written)

    def hand_over(self, owner: object, name: str) -> None:
        """Let a replacement have an attribute of an object of the program: a list of arrays."""
        self._variables.add_list(owner, name)

    def check_read(self, handle: Any) -> None:
        """Raise RUN-094 if a replacement does not know the value of this variable yet."""
        if self._late is not None and self._variables.is_large(handle):
            raise faults.weights_are_read()

    def call(
        self,
        function: Callable[[], R],
        *,
        outline: Outline,
        key: Any = None,
        is_repeatable: bool = True,
        batch: BatchOfOwnRows | None = None,
    ) -> R:
        """Call a function that may compute steps, again if the loss of a worker interrupted it.

        What the function changes beside variables has to be the same after a second call.
        ``outline`` is the structure of its results, which is known before it is called. ``key``
        stands for a function that need not have steps; see `note_step`. The function asks
        ``batch``, which may lack rows, for its tensors. A call that cannot be repeated raises
        RUN-092.
        """
        if getattr(self._local, "scope", None) is not None:
            return function()
        self._batch = batch
        scope = self._local.scope = _Scope(key, is_repeatable)
        try:
            if key is None or key in self._with_steps:
                self._start(scope)
            if self._late is not None:
                return self._caught_up(self._late, function, scope, outline)
            return self._repeated(function, scope)
        finally:
            self._local.scope = self._batch = None

    def note_step(self) -> None:
        """Note that a step is a part of the function that is traced."""
        scope = getattr(self._local, "scope", None)
        if scope is not None and not scope.has_steps:
            self._with_steps.add(scope.key)
            self._start(scope)

    def before_steps(self, function: Callable[[], object]) -> None:
        """Call a function before the first step."""
        self._before_steps.append(function)

    def compare_state(self) -> None:
        """Compare the whole state of all workers before the next call with exchanges."""
        self._compares_state = True

    def _start(self, scope: _Scope, replayed: Log | None = None) -> None:
        scope.has_steps = True
        while self._before_steps:
            self._before_steps.pop()()
        # The same in all exchanges of a call, so all workers know it behind the same call.
        self._mesh.asks_to_stop = self._is_asked
        call = Attempt(replayed=replayed, is_repeatable=scope.is_repeatable)
        if replayed is not None:
            # What others have exchanged in the attempt that this worker has not finished.
            call.is_compared, call.state = self._call.is_compared, self._call.state
        elif self._late is None:
            call.is_compared = self._compares_state or is_compared(self._done)
            if self._compares_state:
                with tf.init_scope():
                    call.state = self._variables.by_name()
        self._call = call

    def _repeated(self, function: Callable[[], R], scope: _Scope) -> R:
        while True:
            try:
                result = function()
            except tf.errors.OpError as error:
                if scope.has_steps and self._call.error is not None:
                    # TensorFlow has it in its own words, with all frames.
                    raise self._call.error from None
                if scope.has_steps and self._call.lacks_rows:
                    # Before the first exchange: the others wait for this worker.
                    self._put_back(error)
                    self._start(scope, self._call.replayed)
                    continue
                if not scope.has_steps or self._call.failure is None:
                    raise
                self._put_back(error)
                self._start(scope, self._recover(self._member.next_view(self._done)))
                continue
            if scope.has_steps:
                self._stops |= self._mesh.asks_to_stop or self._mesh.is_asked_to_stop
                for kernel in self._call.drawn:
                    self._draws[kernel].popleft()
                self._results.add(arrays_of(result), self._variables.small_values())
                if self._call.log:
                    self._done += 1
                    self._last_log = self._call.log
                    self._compares_state &= self._call.replayed is not None
                    self._call.state = None
            if self._batch is not None:
                self._batch.end()
            return result

    def _caught_up(
        self, late: Late, function: Callable[[], R], scope: _Scope, outline: Outline
    ) -> R:
        """Return the results that the others have had, or compute with them from now on."""
        handles = () if scope.has_steps else outline.trace()
        if not scope.has_steps:
            for handle in handles:
                self.check_read(handle)
            return function()
        with ends_with_the_job():
            try:
                found = None if self._stands_with_others() else late.next_results(self)
            except RunError:
                # Nobody answers any more if the others have finished.
                self._member.look()
                raise
        if found is not None:
            self._results.add(*found)
            self._variables.assign_small(found.variables)
            return outline.pack(found.results)
        self._stands_with_others()
        self._start(scope)
        return self._repeated(function, scope)

    def _stands_with_others(self) -> bool:
        """Return whether this worker computes with the others, from here on if it comes to them."""
        late = self._late
        if late is None or not late.stands_with_others(self.point):
            return late is None
        assert late.state is not None
        if self.point.calls:
            # Before the first call, its own values are right, and the others may not have theirs:
            # they connect anew before they begin the program, too.
            self._variables.assign(late.state.values)
        self._late = None
        self._compares_state = True
        return True

    def exchange(self, name: str, value: Any, *, timeout_seconds: float | None = None) -> list[Any]:
        """Return the JSON values of all workers, in their order; outside of steps.

        All workers make the same exchanges in the same order. A value that is a function is called
        again if the members change meanwhile. RUN-069 if a worker does not come, RUN-079 if workers
        hold other states.
        """
        seconds = timeout_seconds or max(self._job.start_seconds, self._job.patience_seconds)
        is_new = self._compares_state or self._compared_at != len(self._results)
        self._compared_at = len(self._results)

        def own() -> Any:
            given = value() if callable(value) else value
            return [given, digest(self._variables.by_name()) if is_new else None]

        told = self._exchanged(name, own, seconds)
        if len({state for _, state in told} - {None}) > 1:
            # On all workers: they have been told the same.
            summaries = self._exchanged(
                "states", lambda: [self.index, summarize(self._variables.by_name())], seconds
            )
            error = faults.other_states(dict(summaries))
            if error is not None:
                raise error
        return [given for given, _ in told]

    def _exchanged(self, name: str, own: Callable[[], Any], seconds: float) -> list[Any]:
        key = f"{name} {self._num_exchanges}"
        while True:
            try:
                if self._stands_with_others() or self._late is None:
                    told = self._member.exchange(key, own(), seconds)
                else:
                    with ends_with_the_job():
                        told = self._late.exchanged(key)
                break
            except ViewOver:
                self._recover(self._member.next_view(self._done))
        self._num_exchanges += 1
        return told

    def agree(self, name: str, value: Callable[[], Any]) -> Any:
        """Return the chief's JSON value on every worker; outside of steps.

        ``value`` is called on the chief alone.
        """

        def own() -> dict[str, Any]:
            return {"is_chief": self.is_chief, "value": value() if self.is_chief else None}

        told = self.exchange(name, own)
        return next(each["value"] for each in told if each["is_chief"])

    def stops(self, *, is_requested: bool) -> bool:
        """Return whether all workers stop after the present call, because one was asked to.

        The others learn of a request of this worker in the next call.
        """
        self._is_asked |= is_requested
        return self._stops

    def leave(self) -> None:
        """Wait until all workers have finished, and leave the job.

        RUN-074 if they finish without this worker, which has not caught up with them.
        """
        if not self._stands_with_others() and self._late is not None:
            self._late.wait_for_end()
        self._is_at_end = True
        while True:
            # Whoever waits for this worker in a step from now on has to know that it has left.
            self._mesh.end_sending()
            view = self._member.leave(self._done, summarize(self._variables.by_name()))
            if view is None:
                break
            self._recover(view)
        self.close()

    def close(self) -> None:
        """End the part of this process in the job at once."""
        self._mesh.close()
        self._network.close()
        self._member.close()

    def _put_back(self, error: tf.errors.OpError) -> None:
        """Undo what the call has written."""
        self._call.put_back(error)
