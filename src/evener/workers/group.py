"""Group of the workers that compute each step together, seen by one of them.

::

    call ──► exchange ──► exchange ──► commit ──► writes of variables ──► next call
               │  a worker dies
               └──► next view ──► the same call again, by those who remain

Variables that a step writes before its commit are put back before the step is computed again. If
some workers had finished the call and others had not, those that had hand over the results of its
exchanges; the others compute it with them. So all workers have the same bits again.

Two carriers take the exchanges of a step: the mesh, or TensorFlow's collectives, whose results this
group never sees. With those, a worker commits once all have come to the commit: whoever is
interrupted there learns from the next view whether another one has committed, and does so too.
"""

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

from evener._tf_private.collective_ops import CollectiveServer, is_aborted, is_late
from evener.errors import RunError
from evener.workers import faults
from evener.workers.job import Job
from evener.workers.late import (
    CallResults,
    Late,
    Network,
    Point,
    ResultOutline,
    Results,
    State,
    ends_with_the_job,
    tensors_as_arrays,
)
from evener.workers.member import Member
from evener.workers.mesh import Mesh, PeerLost, pack, unpack
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

R = TypeVar("R")
Log = list[list[np.ndarray]]
"""Results of the exchanges of a call, in order."""
_LOG = logging.getLogger("evener")


@dataclass(slots=True)
class Attempt:
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


@dataclass(slots=True)
class _OutermostCall:
    key: Any  # Object that stands for the function.
    is_repeatable: bool  # Whether the function may be called again.
    has_steps: bool = False  # Whether steps are a part of it.


class Group:
    """Workers of a job, which may become fewer.

    A replacement begins with the view that the others are in, and with the calls that it has missed
    (``late``); a worker that is there from the start has no ``late``. It has no thread, no clock
    and no socket: ``member`` and ``network`` have them.
    """

    def __init__(
        self, job: Job, member: Member, network: Network, view: View, *, late: Late | None = None
    ) -> None:
        self.index = job.index  # Number of this worker, from 0.
        self.incarnation = job.incarnation  # Number of its restarts.
        self.count = job.count  # Number of workers at the start of the job.
        self.view = view
        # Number of the first worker that lives: it draws random numbers, writes files and prints.
        self.chief = min(view.members)
        self._job, self._member = job, member
        self._network, self._late = network, late
        self._mesh = network.nobody()
        # Addresses of the members, in the order in which they came.
        self._seniority = [view.addresses[index] for index in view.members]
        # View that a commit of this worker came to, not entered yet.
        self._next_view: View | None = None
        # Carries the exchanges of steps, if the mesh does not.
        self.collectives: CollectiveServer | None = None
        self._common: list[tuple[Callable[[], Any], Callable[[Any, View], None]]] = []

        self._local = threading.local()
        self._with_steps: weakref.WeakSet[Any] = weakref.WeakSet()
        self.before_steps: list[Callable[[], object]] = []  # Called once, before the next step.
        self._call = Attempt()
        self._batch: BatchOfOwnRows | None = None
        self._draws: dict[object, deque[list[np.ndarray]]] = {}
        self.variables = Variables()

        self._done = 0  # Calls with exchanges.
        self._last_log: Log = []
        self._results = Results()
        self._num_exchanges = 0
        self._compares_state = False
        self._compared_at = 0
        self._is_asked = self._stops = self._is_at_end = False
        network.answer = lambda question: self._results.since(int(question["results"]))

    @property
    def is_late(self) -> bool:
        """Whether this worker is a replacement that does not stand with the others yet."""
        return self._late is not None

    @property
    def is_chief(self) -> bool:
        return self.index == self.chief

    @property
    def patience_seconds(self) -> float:
        return self._job.patience_seconds

    @property
    def num_steps(self) -> int:
        """Number of calls with steps that this worker has computed or taken over."""
        return len(self._results)

    @property
    def point(self) -> Point:
        """Point of the program at which this worker stands, or where its present call began."""
        return Point(len(self._results), self._num_exchanges)

    # What strategies and callbacks of Keras tell the group.

    def keep_common(
        self, state: Callable[[], Any], begin_with: Callable[[Any, View], None]
    ) -> None:
        """Let all workers begin with the same state after each change of the members."""
        self._common.append((state, begin_with))

    def compare_state(self) -> None:
        """Compare the whole state of all workers before the next call with exchanges."""
        self._compares_state = True

    def check_read(self, handle: Any) -> None:
        """Raise RUN-094 if a replacement does not know the value of this variable yet."""
        if self._late is not None and self.variables.is_large(handle):
            raise faults.weights_are_read()

    # A call, which may be made again.

    def call(
        self,
        function: Callable[[], R],
        *,
        outline: ResultOutline,
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
        scope = self._local.scope = _OutermostCall(key, is_repeatable)
        try:
            if key is None or key in self._with_steps:
                self._enter_next_view()
                self._start(scope)
            if self._late is not None:
                handles = () if scope.has_steps else outline.trace()
                if not scope.has_steps:
                    for handle in handles:
                        self.check_read(handle)
                    return function()
                with ends_with_the_job():
                    try:
                        missed = None if self._is_with_others() else self._late.next_results(self)
                    except RunError:
                        # Nobody answers any more if the others have finished.
                        self._member.look()
                        raise
                if missed is not None:
                    self._results.add(*missed)
                    self.variables.assign_small(missed.variables)
                    return outline.pack(missed.results)
                self._is_with_others()
                self._start(scope)
            return self._repeat(function, scope)
        finally:
            self._local.scope = self._batch = None

    def note_step(self) -> None:
        scope = getattr(self._local, "scope", None)
        if scope is not None and not scope.has_steps:
            self._with_steps.add(scope.key)
            self._start(scope)

    def _start(self, scope: _OutermostCall, replayed: Log | None = None) -> None:
        scope.has_steps = True
        while self.before_steps:
            self.before_steps.pop()()
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
                    call.state = self.variables.by_name()
        self._call = call

    def _repeat(self, function: Callable[[], R], scope: _OutermostCall) -> R:
        while True:
            try:
                result = function()
                break
            except tf.errors.OpError as error:
                if not scope.has_steps:
                    raise
                if self._call.error is not None:
                    # TensorFlow has it in its own words, with all frames.
                    raise self._call.error from None
                if self._call.lacks_rows:
                    # Before the first exchange: the others wait for this worker.
                    self._put_back(error)
                    self._start(scope, self._call.replayed)
                    continue
                if self.collectives is not None and is_late(error):
                    others = ", ".join(str(k) for k in self.view.members if k != self.index)
                    what, seconds = "a collective operation", self._job.patience_seconds
                    raise faults.not_reached_by(others, what, seconds) from None
                if self.collectives is not None and is_aborted(error):
                    self._call.failure = self._call.failure or PeerLost("a worker is gone")
                if self._call.failure is None:
                    raise
                self._put_back(error)
                view, self._next_view = self._next_view, None
                self._start(scope, self._recover(view or self._member.next_view(self._done)))
        if scope.has_steps:
            self._stops |= self._mesh.asks_to_stop or self._mesh.is_asked_to_stop
            for kernel in self._call.drawn:
                self._draws[kernel].popleft()
            self._results.add(tensors_as_arrays(result), self.variables.small_values())
            if self._call.log:
                self._done += 1
                self._last_log = self._call.log
                self._compares_state &= self._call.replayed is not None
                self._call.state = None
        if self._batch is not None:
            self._batch.end()
        return result

    def _put_back(self, error: tf.errors.OpError) -> None:
        """Restore what the attempt has written, or raise RUN-092 if that is not possible."""
        call = self._call
        if call.num_commits or not call.is_repeatable:
            raise RunError(
                "RUN-092",
                f"A step cannot be computed again: {call.failure}.",
                why="Another worker is gone, and the function has computed several steps, or has "
                "written what is no variable.",
                fix="Start the job again from its newest checkpoint; or call one step in each "
                "tf.function.",
            ) from error
        for handle, value in call.kept:
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value))

    # Exchanges of a step, as its graph calls them.

    def begin(self, handles: list[Any], *, is_repeatable: bool) -> Callable[..., None]:
        """Return the function that a step calls, with values of variables, before it exchanges."""

        def begin_step(needed: Rows, *values: np.ndarray) -> None:
            call = self._call
            # Behind the commit of another step, variables are written.
            call.is_repeatable &= is_repeatable and not call.num_commits
            call.kept += zip(handles, values, strict=True)
            if self._batch is None:
                return
            try:
                # What cannot be begun again has to have all rows that it may ever need.
                self._batch.check(needed if is_repeatable else np.ones_like(needed))
            except RowsMissing:
                call.lacks_rows = True
                raise

        return begin_step

    def is_compared(self) -> np.bool_:
        return np.bool_(self._call.is_compared)

    def compare(self, batch: Sequence[np.ndarray]) -> np.bool_:
        """Compare a batch with those of the other workers, and the state before it if that is due.

        RUN-096 if the batches differ, RUN-079 if the states do.
        """
        shown = batch if self._batch is None else self._batch.elements
        own = fingerprint([*map(np.asarray, shown)])
        fingerprints = self._exchange(lambda mesh: mesh.gather("fingerprints", own))
        try:
            check_fingerprints(fingerprints, self.view.members, self._done)
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
        texts = self._exchange(lambda mesh: mesh.gather("states", text))
        summaries = (json.loads(each.tobytes()) for each in texts)
        faults.check_states(dict(zip(self.view.members, summaries, strict=True)))

    def begin_collectives(self, step: str) -> np.ndarray:
        """Meet the others at the same step; return the size and the key of their group."""
        self._meet(f"{step} begins")
        return np.asarray([len(self.view.members), self.view.number, self.is_chief], np.int32)

    def _meet(self, label: str) -> None:
        self._exchange(lambda mesh: mesh.gather(label, np.zeros(1, np.uint8)))

    def commit(self) -> None:
        if self.collectives is not None:
            try:
                self._meet("commit")
            except PeerLost:
                try:
                    view = self._next_view = self._member.next_view(self._done)
                except RunError as error:
                    self._call.error = error
                    raise
                if max(view.done.values()) == self._done:
                    raise
                # Another worker has committed, so all had the results, as this one has.
                self._call.failure = None
        self._call.num_commits += 1

    def reduce(self, label: str, arrays: list[np.ndarray], combine: str) -> list[np.ndarray]:
        """Combine arrays of all workers, which have the same shapes and one type."""
        return self._exchange(lambda mesh: mesh.reduce(label, arrays, combine))

    def gather(self, label: str, array: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of all workers, in their order; their sizes may differ."""
        if array.dtype == object:
            return [unpack(each)[0][0] for each in self.gather(label, pack([[array]]))]
        return self._exchange(lambda mesh: mesh.gather(label, array))

    def draw(self, label: str, arrays: list[np.ndarray], kernel: object) -> list[np.ndarray]:
        """Return random numbers that the chief has drawn, for all."""
        own = self.first_unused(arrays, kernel)
        return self._exchange(lambda mesh: mesh.broadcast(label, own, self.chief))

    def first_unused(self, arrays: list[np.ndarray], kernel: object) -> list[np.ndarray]:
        """Return the first numbers of a kernel that no call has used.

        A call that is made again draws again, and one with a seed gives those of one device.
        """
        queue = self._draws.setdefault(kernel, deque())
        queue.append(arrays)
        self._call.drawn.append(kernel)
        return queue[0]

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
        call = self._call
        # What all have exchanged by collectives, all commit: nobody hands over their results.
        assert call.replayed is None or self.collectives is None
        try:
            results = (
                exchange(self._mesh) if call.replayed is None else call.replayed[len(call.log)]
            )
        except PeerLost as error:
            call.failure = error
            raise
        except RunError as error:
            call.error = error
            raise
        call.log.append(results)
        return results

    # Exchanges outside of steps.

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
            current = value() if callable(value) else value
            return [current, digest(self.variables.by_name()) if is_new else None]

        told = self._exchange_outside(name, own, seconds)
        if len({state for _, state in told} - {None}) > 1:
            # On all workers: they have been told the same.
            summaries = self._exchange_outside(
                "states", lambda: [self.index, summarize(self.variables.by_name())], seconds
            )
            faults.check_states(dict(summaries))
        return [each for each, _ in told]

    def _exchange_outside(self, name: str, own: Callable[[], Any], seconds: float) -> list[Any]:
        key = f"{name} {self._num_exchanges}"
        self._enter_next_view()
        while True:
            try:
                if self._is_with_others() or self._late is None:
                    told = self._member.exchange(key, own(), seconds)
                else:
                    with ends_with_the_job():
                        told = self._late.exchange(key)
                break
            except ViewOver:
                self._recover(self._member.next_view(self._done))
        self._num_exchanges += 1
        return told

    def agree(self, name: str, value: Callable[[], Any]) -> Any:
        """Return the chief's JSON value on every worker; outside of steps."""
        told = self.exchange(name, lambda: [self.is_chief, value() if self.is_chief else None])
        return next(each for is_chief, each in told if is_chief)

    def stops(self, *, is_requested: bool) -> bool:
        """Return whether all workers stop after the present call, because one was asked to."""
        self._is_asked |= is_requested
        return self._stops

    # A replacement, which comes to where the others are.

    def _is_with_others(self) -> bool:
        """Return whether this worker computes with the others, from here on if it comes to them."""
        late = self._late
        if late is None or not late.is_with_others(self.point):
            return late is None
        assert late.state is not None
        if self.point.calls:
            # Before the first call, its own values are right, and the others may not have theirs:
            # they connect anew before they begin the program, too.
            self.variables.assign(late.state.values)
        self._late = None
        self._compares_state = True
        return True

    def ask(self, view: View, number: int) -> list[CallResults]:
        # Those who join with this worker know no more than it. In the first view, all do.
        others = sorted(view.done or view.members, key=lambda index: -view.done.get(index, 0))
        try:
            return self._network.ask([view.addresses[index] for index in others], number)
        except OSError as error:
            raise faults.nobody_tells(str(error) or "none of them is there") from error

    def join(self) -> State:
        view = self._member.join()
        while True:
            if max(view.done.values(), default=NOTHING) == NOTHING:
                raise faults.nobody_tells(
                    "The workers that had a state have ended, and the job begins again."
                )
            self._mesh.close()
            try:
                self._connect(view)
                [parcel] = self._mesh.deliver("handed over", {}).values()
                common = self._mesh.gather_json("common state", {"collectives": self._address()})
                self._begin_collectives(common)
            except PeerLost:
                view = self._member.next_view(NOTHING)
                continue
            state = State.unpack(parcel)
            self._done, self._last_log = state.done, state.log
            self._enter(view, common)
            return state

    # A view ends, and the next one begins: what workers of it miss is handed over.

    def end_view(self) -> None:
        """Interrupt waits for the other workers: the view is over. Safe from any thread."""
        self._network.end(self._member.view.number)
        self._mesh.abort()
        if self.collectives is not None:
            self.collectives.abort()

    def connect(self) -> None:
        """Connect to the other workers at the start of the job, or to those that remain."""
        if self.view.done and self.index in self.view.joined:
            # It asked for a view when there was none, and the first one was formed without it. The
            # others hand over a state; the next start of this worker takes it.
            raise faults.nobody_tells("They had begun when this worker joined them.")
        try:
            self._connect(self.view)
        except PeerLost:
            self._recover(self._member.next_view(self._done))

    def _connect(self, view: View) -> None:
        before, self._mesh = self._mesh, self._network.connect(view)
        before.close()
        if self._network.is_over(view.number):
            # It was over before the mesh was there to be told.
            self._mesh.abort()
        self._mesh.find_readers()

    def use_collectives(self, server: CollectiveServer) -> None:
        """Let TensorFlow's collectives carry the exchanges of steps, from the first one on."""
        self.collectives = server
        if self._late is None:
            try:
                self._begin_collectives()
            except PeerLost:
                self._recover(self._member.next_view(self._done))

    def _address(self) -> str | None:
        """Return where the others reach the collectives of this worker, once it is to use them."""
        return None if self.collectives is None else self.collectives.address

    def _begin_collectives(self, common: Mapping[int, Any] | None = None) -> None:
        if self.collectives is None:
            return
        addresses = {index: told["collectives"] for index, told in (common or {}).items()}
        if not addresses or None in addresses.values():
            # Those without an address have yet to come to `use_collectives`.
            addresses = self._mesh.gather_json("collectives", self.collectives.address)
        self.collectives.begin(addresses)
        # Those that are asked for tensors have to have begun.
        self._mesh.gather_json("collectives begun", None)

    def _enter_next_view(self) -> None:
        """Go on with the workers of the view that a commit came to.

        Not at the end of its step: whoever joins takes the state over at a point of the program,
        and what the program assigns between that end and its next call would be lost.
        """
        view, self._next_view = self._next_view, None
        if view is not None:
            self._recover(view)

    def _recover(self, view: View) -> Log | None:
        """Go on with the workers of a view; return the exchanges of a call that they had done."""
        while True:
            self._mesh.close()
            try:
                self._connect(view)
                replayed = self._hand_over(view)
                states = [state() for state, _ in self._common]
                told = {"stops": self._stops, "seniority": self._seniority, "states": states}
                told["collectives"] = self._address()
                common = self._mesh.gather_json("common state", told)
                self._begin_collectives(common)
            except PeerLost:
                view = self._member.next_view(self._done, is_at_end=self._is_at_end)
                continue
            self._enter(view, common)
            return replayed

    def _hand_over(self, view: View) -> Log | None:
        """Hand over what others miss, or return the exchanges of a call that they had finished."""
        most = max(view.done.values())
        behind = [index for index, done in view.done.items() if done < most]
        if not behind and not view.joined:
            return None
        parcels: dict[int, np.ndarray] = {}
        if self.index == giver_of(view):
            # Those that miss the last call have the state before it; the others have none.
            in_last_call = [index for index in behind if view.done[index] != NOTHING]
            if in_last_call:
                parcels.update(dict.fromkeys(in_last_call, pack(self._last_log)))
            if without_state := {*view.joined, *behind} - {*in_last_call}:
                values = self.variables.values()
                # Whoever takes it may be the next one to hand over.
                log = self._last_log if in_last_call else []
                state = State(point=self.point, done=self._done, values=values, log=log)
                parcels.update(dict.fromkeys(without_state, state.pack()))
        received = self._mesh.deliver("handed over", parcels)
        return unpack(next(iter(received.values()))) if self._done < most else None

    def _enter(self, view: View, common: Mapping[int, Any]) -> None:
        lost = ", ".join(map(str, sorted({*self.view.members} - {*view.members}))) or "none"
        joined = ", ".join(map(str, view.joined)) or "none"
        count = len(view.members)
        _LOG.info("workers: lost %s, joined %s; %d compute together", lost, joined, count)
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

    # The end.

    def leave(self) -> None:
        """Wait until all workers have finished, and leave the job.

        RUN-074 if they finish without this worker, which has not caught up with them.
        """
        if not self._is_with_others() and self._late is not None:
            self._late.wait_for_end()
        self._is_at_end = True
        self._enter_next_view()
        while True:
            # Whoever waits for this worker in a step from now on has to know that it has left.
            self._mesh.end_sending()
            view = self._member.leave(self._done, summarize(self.variables.by_name()))
            if view is None:
                break
            self._recover(view)
        self.close()

    def close(self) -> None:
        self._mesh.close()
        self._network.close()
        self._member.close()


def giver_of(view: View) -> int:
    """Return the member whose state the others take over: one that has finished most calls."""
    most = max(view.done.values())
    return min(index for index, done in view.done.items() if done == most)
