"""A group that goes on when a worker dies or joins: what the others miss is handed over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from evener.workers.arrays import pack, unpack
from evener.workers.attempt import Log
from evener.workers.connections import Listener
from evener.workers.faults import nobody_tells
from evener.workers.job import Job
from evener.workers.late import State
from evener.workers.meeting import connect_members, giver_of, told_by_all
from evener.workers.member import Member
from evener.workers.mesh import Mesh
from evener.workers.results import Results
from evener.workers.step_exchanges import StepExchanges
from evener.workers.variables import Variables
from evener.workers.view import NOTHING, View
from evener.workers.wire import PeerLost

_LOG = logging.getLogger("evener")


class Recovery(StepExchanges):
    """Connections of a worker to the others, which are made anew when the members change.

    Args:
        job: Part of this process in the job.
        member: Connection to the coordinator.
        listener: Listener of this worker.
        view: First view; of a replacement, the view that the others are in.
        patience_seconds: Seconds that an exchange may wait for workers that are alive.
    """

    def __init__(
        self, job: Job, member: Member, listener: Listener, view: View, *, patience_seconds: float
    ) -> None:
        super().__init__(Mesh(job.index, {}, patience_seconds=patience_seconds), view)
        self._job = job
        self._member = member
        self._listener = listener
        self._patience = patience_seconds
        self._common: list[tuple[Callable[[], Any], Callable[[Any, View], None]]] = []
        self._last_log: Log = []
        self._stops = False
        self._results = Results()
        self._variables = Variables()
        listener.answer = self._answer

    def keep_common(
        self, state: Callable[[], Any], begin_with: Callable[[Any, View], None]
    ) -> None:
        """Let all workers begin with the same state after each change of the members.

        Args:
            state: Function that returns the state of this worker, a JSON value.
            begin_with: Function that is given the state of one of them and the new view, before
                the next call is computed.
        """
        self._common.append((state, begin_with))

    @property
    def num_steps(self) -> int:
        """Number of calls with steps that this worker has computed or taken over."""
        return len(self._results)

    def end_view(self) -> None:
        """Break off what waits for the other workers: the view is over. Safe from any thread."""
        self._listener.end(self._member.view.number)
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
                common = told_by_all(
                    self._mesh,
                    {"stops": self._stops, "states": [state() for state, _ in self._common]},
                )
            except PeerLost:
                view = self._member.next_view(self._done)
                continue
            self._enter(view, common)
            return replayed

    def _enter(self, view: View, common: Mapping[int, Any]) -> None:
        self._log_members(view)
        self.view = view
        if self.chief not in view.members:
            self.chief = min(set(view.members) - set(view.joined), default=min(view.members))
        told = common[giver_of(view)]
        self._stops |= told["stops"]
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
        """Become a member, as a replacement; return the state that another worker hands over.

        Raises:
            RunError: RUN-095 if all others have ended meanwhile.
        """
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
                common = told_by_all(self._mesh, None)
            except PeerLost:
                view = self._member.next_view(NOTHING)
                continue
            state = State.unpack(parcel)
            self.chief, self._done = state.chief, state.done
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
        """Return what a replacement needs: it stands where this worker stands."""
        return State(
            done=self._done,
            made=len(self._results),
            chief=self.chief,
            values=self._variables.values(),
        )

    def take_over(self, state: State) -> None:
        """Assign the values of variables that another worker has handed over."""
        self._variables.assign(state.values)

    def _answer(self, question: Any) -> bytes:
        """Return the results of calls from a number on, for a replacement."""
        calls = self._results.since(int(question["results"]))
        return pack([arrays for call in calls for arrays in call]).tobytes()

    def _connect(self, view: View) -> None:
        mesh = connect_members(self._job, self._listener, view, patience_seconds=self._patience)
        before, self._mesh = self._mesh, mesh
        before.close()
        if self._listener.is_over(view.number):
            # It was over before the mesh was there to be told.
            mesh.abort()
        mesh.find_readers()
