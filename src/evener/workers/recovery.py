"""A group that goes on when a worker dies or joins: what the others miss is handed over."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from evener.workers.arrays import pack, unpack
from evener.workers.attempt import Log
from evener.workers.faults import nobody_tells
from evener.workers.job import Job
from evener.workers.late import Point, State
from evener.workers.member import Member
from evener.workers.network import Network
from evener.workers.results import CallResults, Results
from evener.workers.step_exchanges import StepExchanges
from evener.workers.variables import Variables
from evener.workers.view import NOTHING, View
from evener.workers.wire import PeerLost

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
