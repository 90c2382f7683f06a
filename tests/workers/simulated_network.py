"""Network of a simulated job: meshes of workers, questions, and connections to the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evener.workers import faults, mesh
from evener.workers.job import Job
from evener.workers.late import CallResults
from evener.workers.member import Member
from evener.workers.mesh import PeerLost, other_step
from evener.workers.messages import Appear, Beat, Message, View
from workers.simulated_world import HEARTBEAT


class Network:
    """Network of a process: what `evener.workers.late.Network` is to a worker."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.answer: Callable[[Any], bytes] | None = None
        self._over = 0
        self.is_closed = False

    def nobody(self) -> Mesh:
        return Mesh(self.owner, 0, [self.owner.index])

    def connect(self, view: View) -> Mesh:
        return connect(self.owner, view)

    def ask(self, addresses: Sequence[str], number: int) -> list[Any]:
        return ask(self.owner, addresses, number)

    def end(self, view: int) -> None:
        self._over = max(self._over, view)
        self.owner.world.at(0.0, self.owner.poke)

    def is_over(self, view: int) -> bool:
        return view <= self._over

    def close(self) -> None:
        self.is_closed = True


class Mesh:
    """Connections of a member of a view; messages of a pair arrive in order."""

    def __init__(self, owner: Any, view: int, members: Sequence[int]) -> None:
        self.members = tuple(sorted(members))
        self.asks_to_stop = self.is_asked_to_stop = False
        self._owner = owner
        self._view = view
        self._peers = [index for index in self.members if index != owner.index]
        self._sides: dict[int, Mesh] = {}
        self._arrived: dict[int, list[tuple[int, str, Any]]] = {peer: [] for peer in self._peers}
        self._latest: dict[int, float] = {}
        self._gone: set[int] = set()
        self._count = 0
        self._is_over = False

    def join(self, others: Mapping[int, Mesh]) -> None:
        self._sides = dict(others)

    def reduce(self, label: str, arrays: list[Any], combine: str) -> list[Any]:
        rounds = self._exchange(label, dict.fromkeys(self._peers, arrays))
        rounds[self._owner.index] = arrays
        merge = max if combine == "max" else sum
        return [np.asarray(merge(each)) for each in zip(*rounds.values(), strict=True)]

    def gather(self, label: str, array: Any) -> list[Any]:
        found = self._exchange(label, dict.fromkeys(self._peers, array))
        return [found.get(member, array) for member in self.members]

    gather_json: Any = mesh.Mesh.gather_json

    def deliver(self, label: str, parcels: Mapping[int, Any]) -> dict[int, Any]:
        found = self._exchange(label, {peer: parcels.get(peer) for peer in self._peers})
        return {peer: parcel for peer, parcel in found.items() if parcel is not None}

    def find_readers(self) -> None:
        self._exchange("memory", dict.fromkeys(self._peers))

    def end_sending(self) -> None:
        for peer, side in self._sides.items():
            side.lose(self._owner.index, self._latest.get(peer, 0.0))

    def abort(self) -> None:
        self._is_over = True
        self._owner.world.at(0.0, self._owner.poke)

    def close(self) -> None:
        self._is_over = True
        for peer, side in self._sides.items():
            side.lose(self._owner.index, self._latest.get(peer, 0.0))

    def lose(self, peer: int, after: float) -> None:
        """See the end of a connection, behind all that it has brought."""
        world = self._owner.world
        due = max(world.now + world.delay(), after)

        def see() -> None:
            self._gone.add(peer)
            world.at(0.0, self._owner.poke)

        world.at(due - world.now, lambda: self._owner.handle(see))

    def _exchange(self, label: str, sends: Mapping[int, Any]) -> dict[int, Any]:
        if self._is_over:
            raise PeerLost("the view is over")
        self._count += 1
        world = self._owner.world
        for peer, sent in sends.items():
            due = max(world.now + world.delay(), self._latest.get(peer, 0.0))
            self._latest[peer] = due
            side = self._sides.get(peer)
            if side is not None:
                self._send(side, due - world.now, (self._count, label, sent))
        found: dict[int, Any] = {}

        def ready() -> bool:
            waits = False
            for peer, messages in self._arrived.items():
                if not messages:
                    if peer in self._gone:
                        return True
                    waits = True
            return self._is_over or not waits

        if self._peers:
            self._owner.wait(ready, f"{label} of view {self._view}")
        if self._peers and self._is_over:
            raise PeerLost("the view is over")
        for peer in self._peers:
            if not self._arrived[peer]:
                raise PeerLost(f"worker {peer} is gone")
        for peer in self._peers:
            number, other, found[peer] = self._arrived[peer].pop(0)
            if (number, other) != (self._count, label):
                raise other_step(f"{label} against {other}", peer)
        return found

    def _send(self, side: Mesh, delay: float, message: tuple[int, str, Any]) -> None:
        own = self._owner.index

        def arrive() -> None:
            side._arrived[own].append(message)
            side._owner.poke()

        # The kernel takes it, also for a process that is frozen.
        self._owner.world.at(delay, arrive)


def connect(owner: Any, view: View) -> Mesh:
    world = owner.world
    owner.network.end(view.number - 1)
    mesh = world.meetings.setdefault(view.number, {})
    # The other side may have made it: a connection is there before both look for it.
    own = mesh.setdefault(owner.index, Mesh(owner, view.number, view.members))
    until = world.now + world.delay()
    world.at(until - world.now, owner.poke)
    others = [k for k in view.members if k != owner.index]

    def peer_of(index: int) -> Any:
        address = view.addresses[index]
        each = world.processes.get(index)
        return each if each is not None and f"{each.index}.{each.incarnation}" == address else None

    def failed() -> bool:
        if owner.network.is_over(view.number):
            return True
        peers = [peer_of(index) for index in others]
        return any(
            each is None or not each.is_alive or each.network.is_over(view.number) for each in peers
        )

    def ready() -> bool:
        answers = all(not each.is_frozen for index in others if (each := peer_of(index)))
        return failed() or (world.now >= until and answers)

    while True:
        # Threads of the other process answer; it may be looked at again after a while.
        if owner.wait(ready, f"connections of view {view.number}", 1.0):
            break
        if world.now > until + 30.0:
            raise PeerLost("no connection to another worker")
    if failed():
        raise PeerLost("no connection to another worker: the view is over")
    sides = {}
    for index in others:
        peer = peer_of(index)
        assert peer is not None
        sides[index] = mesh.setdefault(index, Mesh(peer, view.number, view.members))
    own.join(sides)
    owner.pair_ends = [own.close]
    return own


def ask(owner: Any, addresses: Sequence[str], number: int) -> list[Any]:
    """Ask other processes one after the other for the results of calls."""
    world = owner.world
    until = world.now + 60.0
    for address in addresses:
        index, incarnation = map(int, address.split("."))
        limit = world.now + 2.0
        while True:
            due = world.now + world.delay() + 0.001
            world.at(due - world.now, owner.poke)
            owner.wait(lambda due=due: world.now >= due, f"an answer of {address}")
            each = world.processes.get(index)
            if each is None or each.incarnation != incarnation or not each.is_alive:
                break
            if each.network.is_closed:
                break
            if not each.is_frozen and each.network.answer is not None:
                return CallResults.unpack_all(each.network.answer({"results": number}))
            if world.now >= limit and (address != addresses[-1] or world.now >= until):
                break
            world.at(0.5, owner.poke)
            owner.wait(lambda again=world.now + 0.5: world.now >= again, f"{address}, frozen")
    raise ConnectionError("none of them answers")


class Line:
    """Connection of a process to the coordinator, seen by the coordinator; also `Channel` to it."""

    def __init__(self, owner: Any, receive: Callable[[Mapping[str, Any]], None]) -> None:
        self.owner = self._owner = owner
        self._receive = receive
        self._is_cut = self._is_ended = False
        self._due = [0.0, 0.0]

    def _later(self, way: int, act: Callable[[], None]) -> None:
        world = self._owner.world
        self._due[way] = max(self._due[way], world.now + world.delay())
        world.at(self._due[way] - world.now, act)

    # Towards the member.

    def send(self, message: Mapping[str, Any]) -> None:
        if not self._is_ended:
            self._later(0, lambda: self._owner.handle(lambda: self._arrive(message)))

    def _arrive(self, message: Mapping[str, Any]) -> None:
        if not self._is_cut:
            self._receive(message)

    def end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._later(0, lambda: self._owner.handle(lambda: self._receive({"kind": "closed"})))

    # Towards the coordinator.

    def tell(self, message: Message) -> None:
        if not self._is_cut:
            self._later(1, lambda: self._owner.world.coordinator.receive(self, message))

    def cut(self) -> None:
        if self._is_cut:
            return
        self._later(1, lambda: self._owner.world.coordinator.disconnected(self))
        self._owner.handle(lambda: self._receive({"kind": "closed"}))
        self._is_cut = True


class Condition:
    """`threading.Condition` of a process in the simulation."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __enter__(self) -> Condition:
        return self

    def __exit__(self, *exc: object) -> None:
        return

    def notify_all(self) -> None:
        self._owner.world.at(0.0, self._owner.poke)

    def wait_for(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        return self._owner.wait(ready, "the coordinator", timeout)


class SimulatedMember(Member):
    """`Member` on a simulated connection."""

    def __init__(self, owner: Any, job: Job, on_view_over: Callable[[], None]) -> None:
        super().__init__(job, address=job.host, facts={}, on_view_over=on_view_over)
        self._owner = owner
        self._changed: Any = Condition(owner)
        self._presence_line: Line | None = None

    def appear(self) -> None:
        self._presence_line = Line(self._owner, lambda message: None)
        self._owner.line = self._presence_line
        self._presence_line.tell(Appear(index=self._job.index, incarnation=self._job.incarnation))
        self._beat_on(self._presence_line)

    def look(self) -> tuple[View | None, dict[str, list[Any]]]:
        world = self._owner.world
        due = world.now + world.delay() * 2 + 0.001
        world.at(due - world.now, self._owner.poke)
        self._owner.wait(lambda: world.now >= due, "a look")
        past = world.coordinator.membership.past()
        if past["is_over"]:
            raise faults.job_over(self._job.index)
        view = None if past["view"] is None else View.from_json(past["view"])
        return view, dict(past["exchanged"])

    def join(self) -> View:
        line = Line(self._owner, self._arrive)
        self._channel: Any = line
        self._send(self._hello)
        self._owner.line = line
        self._beat_on(line)
        return self._view_after(0)

    def pause(self, seconds: float) -> None:
        self._owner.pause(seconds)

    def close(self) -> None:
        self._fail(faults.closed(self._job.index))
        if self._channel is not None:
            self._channel.cut()

    def _send(self, message: Message) -> None:
        self._channel.tell(message)

    def _arrive(self, message: Mapping[str, Any]) -> None:
        if message["kind"] == "closed":
            self._fail(faults.coordinator_gone("coordinator:1", "its connection closed"))
        elif self._failure is None:
            self._take(message)

    def _beat_on(self, line: Line) -> None:
        def beat() -> None:
            if self._owner.is_alive and self._owner.line is line:
                line.tell(Beat())
                self._owner.world.at(HEARTBEAT / 4, lambda: self._owner.handle(beat))

        self._owner.world.at(HEARTBEAT / 4, lambda: self._owner.handle(beat))
