"""Group of the workers that compute each step together, seen by one of them."""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from evener.errors import RunError
from evener.workers import faults
from evener.workers.faults import nobody_tells, other_states
from evener.workers.job import Job
from evener.workers.late import (
    CallResults,
    Late,
    Network,
    Outline,
    Point,
    Results,
    State,
    arrays_of,
    ends_with_the_job,
)
from evener.workers.member import Member
from evener.workers.mesh import Mesh, lengths_of, pack, strings_of, unpack
from evener.workers.messages import NOTHING, View, ViewOver
from evener.workers.own_rows import BatchOfOwnRows, Rows, RowsMissing
from evener.workers.state import (
    Arrays,
    Variables,
    check_fingerprints,
    digest,
    fingerprint,
    is_compared,
    summarize,
)
from evener.workers.wire import PeerLost

# One attempt of a call: its exchanges, and how its writes are put back.

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


# Exchanges of a step, as its graph calls them: sums, rows, random numbers, fingerprints.


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


# A group that goes on when a worker dies or joins: what the others miss is handed over.

_LOG = logging.getLogger("evener")


class Recovery(StepExchanges):
    """Connections of a worker to the others, which are made anew when the members change.

    It has no thread, no clock and no socket: `member` and `network` have them.
    """

    def __init__(self, job: Job, member: Member, network: Network, view: View) -> None:
        super().__init__(network.nobody(), view)
        self._job = job
        self._member = member
        self._network = network
        self._common: list[tuple[Callable[[], Any], Callable[[Any, View], None]]] = []
        self._last_log: Log = []
        self._stops = self._is_at_end = False
        self._results = Results()
        self._variables = Variables()
        self._num_exchanges = 0
        self._compares_state = False
        # Addresses of the members, in the order in which they came.
        self._seniority = [view.addresses[index] for index in view.members]
        network.answer(self._results.since)

    def keep_common(
        self, state: Callable[[], Any], begin_with: Callable[[Any, View], None]
    ) -> None:
        """Let all workers begin with the same state after each change of the members.

        ``begin_with`` is given the JSON state of one of them and the new view, before the next call
        is computed.
        """
        self._common.append((state, begin_with))

    @property
    def num_steps(self) -> int:
        """Number of calls with steps that this worker has computed or taken over."""
        return len(self._results)

    @property
    def point(self) -> Point:
        """Point of the program at which this worker stands, or where its present call began."""
        return Point(len(self._results), self._num_exchanges)

    def end_view(self) -> None:
        """Interrupt waits for the other workers: the view is over. Safe from any thread."""
        self._network.end(self._member.view.number)
        self._mesh.abort()

    def connect(self) -> None:
        """Connect to the other workers at the start of the job, or to those that remain."""
        try:
            self._connect(self.view)
        except PeerLost:
            self._recover(self._member.next_view(self._done))

    def _recover(self, view: View) -> Log | None:
        """Go on with the workers of a view; return the exchanges of a call that they had done."""
        while True:
            self._mesh.close()
            try:
                self._connect(view)
                replayed = self._handed_over(view)
                states = [state() for state, _ in self._common]
                common = self._told_by_all(
                    {"stops": self._stops, "seniority": self._seniority, "states": states}
                )
            except PeerLost:
                view = self._member.next_view(self._done, is_at_end=self._is_at_end)
                continue
            self._enter(view, common)
            return replayed

    def _enter(self, view: View, common: Mapping[int, Any]) -> None:
        self._log_members(view)
        self.view = view
        self._compares_state = True
        told = common[giver_of(view)]
        self._stops |= told["stops"]
        # The same on all, also on those that did not see each view. A replacement comes last: it
        # has not drawn the numbers of the kernels that keep a state.
        index_of = {address: index for index, address in view.addresses.items()}
        self._seniority = [address for address in told["seniority"] if address in index_of]
        self._seniority += [a for a in view.addresses.values() if a not in self._seniority]
        self.chief = index_of[self._seniority[0]]
        for (_, begin_with), state in zip(self._common, told["states"], strict=True):
            begin_with(state, view)

    def _log_members(self, view: View) -> None:
        before = set(self.view.members)
        lost = ", ".join(map(str, sorted(before - set(view.members)))) or "none"
        joined = ", ".join(map(str, view.joined)) or "none"
        _LOG.info(
            "workers: lost %s, joined %s; %d compute together", lost, joined, len(view.members)
        )

    def join(self) -> State:
        """Become a member, as a replacement; return the state that another worker hands over."""
        view = self._member.join()
        while True:
            if max(view.done.values(), default=NOTHING) == NOTHING:
                raise nobody_tells(
                    "The workers that had a state have ended, and the job begins again."
                )
            self._mesh.close()
            try:
                self._connect(view)
                [parcel] = self._mesh.deliver("handed over", {}).values()
                common = self._told_by_all(None)
            except PeerLost:
                view = self._member.next_view(NOTHING)
                continue
            state = State.unpack(parcel)
            self._done = state.done
            self._enter(view, common)
            return state

    def _handed_over(self, view: View) -> Log | None:
        """Hand over what others miss, or return the exchanges of a call that they had finished."""
        most = max(view.done.values())
        behind = [index for index, done in view.done.items() if done < most]
        if not behind and not view.joined:
            return None
        parcels: dict[int, np.ndarray] = {}
        if self._job.index == giver_of(view):
            stands = [index for index in behind if view.done[index] != NOTHING]
            if stands:
                parcels.update(dict.fromkeys(stands, pack(self._last_log)))
            if news := {*view.joined, *behind} - {*stands}:
                parcels.update(dict.fromkeys(news, self._state().pack()))
        received = self._mesh.deliver("handed over", parcels)
        return unpack(next(iter(received.values()))) if self._done < most else None

    def _state(self) -> State:
        return State(point=self.point, done=self._done, values=self._variables.values())

    def ask(self, view: View, number: int) -> list[CallResults]:
        """Ask members of a view that have a state for the results of the calls from a number on."""
        # Those who join with this worker know no more than it. In the first view, all do.
        others = sorted(view.done or view.members, key=lambda index: -view.done.get(index, 0))
        try:
            return self._network.ask([view.addresses[index] for index in others], number)
        except OSError as error:
            raise nobody_tells(str(error) or "none of them is there") from error

    def _told_by_all(self, own: Any) -> dict[int, Any]:
        """Return a JSON value of each member; `PeerLost` if the view is over."""
        text = np.frombuffer(json.dumps(own).encode(), np.uint8)
        found = self._mesh.gather("common state", text)
        told = (json.loads(each.tobytes()) for each in found)
        return dict(zip(self._mesh.members, told, strict=True))

    def _connect(self, view: View) -> None:
        before, self._mesh = self._mesh, self._network.connect(view)
        before.close()
        if self._network.is_over(view.number):
            # It was over before the mesh was there to be told.
            self._mesh.abort()
        self._mesh.find_readers()


def giver_of(view: View) -> int:
    """Return the member whose state the others take over: one that has finished most calls."""
    most = max(view.done.values())
    return min(index for index, done in view.done.items() if done == most)


# Group of the workers that compute each step together, seen by one of them.
#
# ::
#
#     call ──► exchange ──► exchange ──► commit ──► writes of variables ──► next call
#                │  a worker dies
#                └──► next view ──► the same call again, by those who remain
#
# Variables that a step writes before its commit are put back before the step is computed again. If
# some workers had finished the call and others had not, those that had hand over the results of its
# exchanges; the others compute it with them. So all workers have the same bits again.

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
