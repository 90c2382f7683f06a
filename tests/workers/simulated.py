"""Whole jobs of several workers in one thread, on a clock and a network that are simulated.

::

    seed ──► schedule: program, delays, deaths, freezes        heap of events, by virtual time
               │
               ├─ workers      greenlets: the real Group, Recovery and Late; each wait is a switch
               ├─ coordinator  the real Membership
               └─ launcher     the real Supervisor and Policy

Behind every item of its program, the whole state of a worker is compared with that of an
undisturbed run. A seed gives the same job, event by event.
"""

from __future__ import annotations

import argparse
import heapq
import io
import itertools
import logging
import math
import multiprocessing
import random
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import greenlet
import numpy as np
import tensorflow as tf

from evener.errors import EvenerError, RunError
from evener.workers import faults, late, mesh, process, supervisor
from evener.workers import files as once
from evener.workers import supervisor as control
from evener.workers.group import Group
from evener.workers.job import Job
from evener.workers.late import CallResults
from evener.workers.member import Member
from evener.workers.membership import Membership
from evener.workers.messages import Appear, Beat, Failed, Leave, Message, Stop, View
from evener.workers.output import Console
from evener.workers.supervisor import JobControl, LaunchSettings, Start, Supervisor, WorkerCommand
from evener.workers.wire import PeerLost, other_step

HEARTBEAT = 10.0
START = 60.0
GRACE = 20.0
PATIENCE = 600.0
RESTARTS = 12
LONGEST = 300.0
"""Virtual seconds within which every job ends."""
MOST_EVENTS = 50_000
_PRIME = (1 << 61) - 1


class Wrong(Exception):
    """A job broke one of its promises."""


class Killed(greenlet.GreenletExit):
    """The end of a process, which nothing of it survives."""


# --- The program: a list of items, each of which changes the state of a worker ---


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a program.

    Attributes:
        kind: ``"train"``, ``"test"``: a call with exchanges; ``"alone"``: a call without one;
            ``"assign"``, ``"reset"``: eager assignments; ``"save"``, ``"agree"``: exchanges outside
            of steps.
        number: Number that makes it different from others.
    """

    kind: str
    number: int


def draw_program(rng: random.Random) -> list[Item]:
    """Return a program of some epochs with validations, saves and schedules of learning rates."""
    items: list[Item] = []
    saves, tests = rng.random() < 0.6, rng.random() < 0.5
    for epoch in range(rng.randint(1, 4)):
        if rng.random() < 0.7:
            items.append(Item("assign", epoch))
        items.append(Item("reset", epoch))
        items += [Item("train", step) for step in range(rng.randint(1, 5))]
        if rng.random() < 0.2:
            items.append(Item("alone", epoch))
        if tests:
            items += [Item("test", step) for step in range(rng.randint(1, 2))]
        if saves:
            items.append(Item("save", epoch))
        elif rng.random() < 0.3:
            items.append(Item("agree", epoch))
    return items


@dataclass(slots=True)
class Values:
    """State of a worker: what `evener.workers.state.Variables` holds for a program.

    Attributes:
        weights: Large variable that training steps write.
        metric: Small variable that every step writes.
        rate: Large variable that the program assigns between steps, and steps read.
        count: Python's own state: the items so far.
    """

    weights: int = 1
    metric: int = 0
    rate: int = 1
    count: int = 0

    def apply(self, item: Item, total: int) -> None:
        """Change the state as an item does, with the sum of all workers."""
        match item.kind:
            case "train":
                self.weights = (self.weights * 31 + total * self.rate + item.number) % _PRIME
                self.metric += total
            case "test" | "alone":
                self.metric = (self.metric + total * 7 + item.number) % _PRIME
            case "assign":
                self.rate = item.number + 2
            case "reset":
                self.metric = 0
        self.count += 1

    def state(self) -> tuple[int, int, int, int]:
        return self.weights, self.metric, self.rate, self.count

    # What the group asks of its variables.

    def values(self) -> tuple[np.ndarray, ...]:
        return tuple(np.asarray(value) for value in (self.weights, self.metric, self.rate))

    def assign(self, values: Sequence[np.ndarray]) -> None:
        self.weights, self.metric, self.rate = map(int, values)

    def small_values(self) -> list[np.ndarray]:
        return [np.asarray(self.metric)]

    def assign_small(self, values: Sequence[np.ndarray]) -> None:
        self.metric = int(values[0])

    def by_name(self) -> dict[str, np.ndarray]:
        return dict(zip(("weights", "metric", "rate"), self.values(), strict=True))

    def is_large(self, handle: object) -> bool:
        return False


def reference(program: Sequence[Item]) -> list[tuple[int, int, int, int]]:
    """Return the state of one undisturbed device before each item, and at the end."""
    values, states = Values(), []
    for position, item in enumerate(program):
        states.append(values.state())
        values.apply(item, batch_of(position))
    return [*states, values.state()]


def batch_of(position: int) -> int:
    """Return the sum over the batch of the call at a position of the program."""
    return position * 97 + 13


# --- The world: a clock, events, processes ---


class World:
    """A simulated job.

    Args:
        seed: Seed of the schedule.
        faults: Faults by the number of the event after which they are made; None to draw some.
    """

    def __init__(self, seed: int, faults: Sequence[tuple[int, str]] | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.num_events = 0
        self.log: list[str] | None = None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ids = itertools.count()
        self.count = self.rng.choice([2, 2, 3, 3, 4])
        self.program = draw_program(self.rng)
        self.expected = reference(self.program)
        self.rounds = self.rng.randint(1, 3)
        self.latency = self.rng.choice([0.0005, 0.01, 0.2])
        self.start_delay = self.rng.choice([0.05, 0.5, 5.0])
        self.processes: dict[int, Process] = {}
        self.saves: dict[int, int] = {}
        self.has_reached_end = self.disagreed = False
        self.result: int | None = None
        self.quitter: tuple[int, int] | None = None
        self.meetings: dict[int, dict[int, Mesh]] = {}
        self.coordinator: Any = None
        # One in so many jobs has few replacements.
        self.restarts = seed // 13 % 2 if seed % 13 == 12 else RESTARTS
        self.launcher = Launcher(self)
        length = 60 + 8 * self.count * len(self.program) * self.rounds
        drawn = [
            (self.rng.randint(1, length), self.rng.choice(FAULTS))
            for _ in range(self.rng.choice([1, 1, 2, 3]))
        ]
        # A program that ends early where nobody is left to go on has ended, as far as one can know.
        quits = [fault for fault in drawn if fault[1] == "quit"][:1]
        quits += [(quits[0][0] + 200, "kill")] if quits and len(drawn) > 1 else []
        self.faults = (quits or sorted(drawn)) if faults is None else list(faults)

    def note(self, text: str) -> None:
        """Note what happens, for a person who looks at one schedule."""
        if self.log is not None:
            self.log.append(f"{self.now:8.3f} {text}")

    def at(self, delay: float, act: Callable[[], None]) -> None:
        """Do something after a time."""
        heapq.heappush(self._heap, (self.now + delay, next(self._ids), act))

    def delay(self) -> float:
        """Return a time that a message takes."""
        return self.rng.random() * self.latency

    def run(self) -> int:
        """Run the job to its end; return the exit code.

        Raises:
            Wrong: If it breaks a promise.
        """
        left = list(self.faults)
        self.launcher.start()
        while self.result is None:
            if not self._heap:
                raise Wrong(f"all wait for ever: {self.waits()}")
            self.now, _, act = heapq.heappop(self._heap)
            if self.now > LONGEST or self.num_events > MOST_EVENTS:
                raise Wrong(f"it goes on after {self.num_events} events: {self.waits()}")
            act()
            self.num_events += 1
            while left and self.num_events >= left[0][0]:
                self._break(left.pop(0)[1])
        if self.result == 0 and not self.has_reached_end:
            raise Wrong("exit 0, and no worker has come to the end of the program")
        quits = any(kind == "quit" for _, kind in self.faults)
        is_spent = self.restarts < RESTARTS and not self.waits()
        if self.result != 0 and not is_spent and not (quits and self.disagreed):
            raise Wrong(f"the job was lost with exit code {self.result}")
        return self.result

    def close(self) -> None:
        """End all that is left."""
        for each in self.processes.values():
            each.kill()

    def waits(self) -> str:
        """Return what the living processes wait for."""
        return "; ".join(each.describe() for each in self.processes.values() if each.is_alive)

    def _break(self, kind: str) -> None:
        there = [each for each in self.processes.values() if each.is_alive]
        if not there:
            return
        victims = self.rng.sample(there, min(len(there), 2 if kind == "kill two" else 1))
        for victim in victims:
            self.note(f"fault: {kind} {victim}")
            match kind:
                case "kill" | "kill two":
                    victim.end(-9)
                case "freeze":
                    victim.freeze(self.rng.choice([0.3, 4.0, 12.0, 60.0]))
                case "quit":
                    victim.quits = True
                case "cut":
                    victim.cut()


FAULTS = ["kill", "kill", "kill", "kill two", "freeze", "freeze", "cut", "quit"]


class Process:
    """A worker's process: a greenlet for its program, and the handlers of its other threads.

    Args:
        world: The job.
        index: Number of the worker.
        incarnation: Number of its restarts.
        on_end: Function that takes the exit code.
    """

    def __init__(
        self, world: World, index: int, incarnation: int, on_end: Callable[[int], None]
    ) -> None:
        self.world = world
        self.index, self.incarnation = index, incarnation
        self._on_end = on_end
        self.is_alive, self.is_frozen, self.quits = True, False, False
        self._held: list[Callable[[], None]] = []
        self._waiting_for = "its start"
        self.values = Values()
        self.position = 0
        self.pair_ends: list[Callable[[], None]] = []
        self.line: Line | None = None
        self.network = Network(self)
        self.group: Any = None
        self._greenlet = greenlet.greenlet(self._main)
        world.at(world.start_delay * (0.5 + world.rng.random()), self.poke)
        self._is_started = False

    def __repr__(self) -> str:
        return f"worker {self.index}.{self.incarnation}"

    def describe(self) -> str:
        frozen = " frozen" if self.is_frozen else ""
        return f"{self}{frozen} at item {self.position} waits for {self._waiting_for}"

    # What happens to it.

    def handle(self, act: Callable[[], None]) -> None:
        """Let a thread of the process act, when the process runs."""
        if not self.is_alive:
            return
        if self.is_frozen:
            self._held.append(act)
        else:
            act()

    def poke(self) -> None:
        """Let the program look whether it can go on. Called by the world alone."""
        if self.is_alive and not self.is_frozen:
            self._greenlet.switch()

    def freeze(self, seconds: float) -> None:
        """Stop for some time, without an end."""
        if self.is_frozen:
            return
        self.is_frozen = True
        self.world.at(seconds, self._thaw)

    def _thaw(self) -> None:
        if not self.is_alive:
            return
        self.is_frozen = False
        held, self._held = self._held, []
        for act in held:
            self.handle(act)
        self.poke()

    def cut(self) -> None:
        """Lose all connections, and live on."""
        for end in self.pair_ends:
            end()
        if self.line is not None:
            self.line.cut()

    def kill(self) -> None:
        """End the process with its program, wherever it is."""
        self.is_alive = False
        self._held.clear()
        if self._greenlet and self._greenlet is not greenlet.getcurrent():
            self._greenlet.throw(Killed)

    def end(self, code: int) -> None:
        """End the process; the others and the launcher see it a moment later."""
        if not self.is_alive:
            return
        self.world.note(f"{self} ends with {code}")
        self.kill()
        for end in self.pair_ends:
            end()
        self.network.close()
        if self.line is not None:
            self.line.cut()
        self.world.at(self.world.delay() + 0.001, lambda: self._on_end(code))

    # What it does.

    def wait(self, ready: Callable[[], bool], what: str, seconds: float | None = None) -> bool:
        """Wait until something is ready; return whether it is, or the time is over."""
        limit = None if seconds is None else self.world.now + seconds
        if seconds is not None:
            self.world.at(seconds, self.poke)
        self._waiting_for = what
        while not ready():
            if limit is not None and self.world.now >= limit:
                return False
            self.world_switch()
        return True

    def world_switch(self) -> None:
        """Give way to the other events."""
        parent = self._greenlet.parent
        assert parent is not None
        parent.switch()

    def compute(self) -> None:
        """Let time pass, as a kernel or Python does."""
        self.pause(0.01 * (0.5 + self.world.rng.random()))

    def pause(self, seconds: float) -> None:
        """Let a time pass."""
        until = self.world.now + seconds
        self.world.at(seconds, self.poke)
        self.wait(lambda: self.world.now >= until, "a pause")

    def _main(self) -> None:
        try:
            code = self._run()
        except Killed:
            return
        except SystemExit as error:
            code = int(error.code or 0)
        except EvenerError as error:
            self.world.note(f"{self}: {error.code} {error.what} {error.why}")
            code = faults.EXIT_CODE_OF_LOST if faults.is_lost(error) else 1
            if code == 1:
                raise Wrong(f"{self} raised {error}") from error
        except Wrong:
            raise
        except Exception as error:
            raise Wrong(f"{self} raised {traceback.format_exc()}") from error
        self.end(code)

    def _run(self) -> int:
        world = self.world
        job = Job(
            index=self.index,
            count=world.count,
            coordinator="coordinator:1",
            secret=b"",
            hosts_coordinator=False,
            host=f"{self.index}.{self.incarnation}",
            incarnation=self.incarnation,
            heartbeat_seconds=HEARTBEAT,
            start_seconds=START,
            patience_seconds=PATIENCE,
        )
        groups: list[Any] = []

        def end_view() -> None:
            self.network.end(member.view.number)
            for group in groups:
                group.end_view()

        member = SimulatedMember(self, job, end_view)
        late, view = process._begin(job, member)
        network: Any = self.network
        group = self.group = Group(job, member, network, view, late=late)
        group._variables = self.values
        groups.append(group)
        if not group.is_late:
            group.connect()
        files = once.Once(group)
        while self.position < len(world.program):
            self._check()
            item = world.program[self.position]
            if self.quits and not group.is_late:
                world.note(f"{self} quits at item {self.position}")
                break
            self._do(group, files, item)
            self.position += 1
        else:
            self._check()
        world.note(f"{self} leaves at item {self.position}{' late' if group.is_late else ''}")
        at_end = self.position == len(world.program)
        world.has_reached_end |= at_end
        process._leave(group, None)
        return 0

    def _check(self) -> None:
        state, expected = self.values.state(), self.world.expected[self.position]
        if not self.group.is_late and state != expected:
            raise Wrong(f"{self} has {state} at item {self.position}, not {expected}")

    def _do(self, group: Any, files: Any, item: Item) -> None:
        position = self.position
        match item.kind:
            case "train" | "test" | "alone":
                self.compute()
                group.call(
                    lambda: self._call(group, item, position),
                    outline=SimpleNamespace(trace=lambda: [], pack=lambda arrays: None),
                )
                if group.is_late:
                    self.values.count += 1
            case "save":
                files.write("Model.save", "/model", lambda: self._save(position))
                self.values.apply(item, 0)
            case "agree":
                found = group.agree("checkpoint", lambda: position)
                if found != position:
                    raise Wrong(f"{self} agreed on {found} at item {position}")
                self.values.apply(item, 0)
            case _:
                self.values.apply(item, 0)

    def _save(self, position: int) -> None:
        self.compute()
        state = self.values.state()
        if state != self.world.expected[position]:
            raise Wrong(f"{self} saves {state} at item {position}")

    def _call(self, group: Any, item: Item, position: int) -> None:
        """Compute a step: exchanges, a commit, and writes."""
        world = self.world
        members = group.view.members
        share = batch_of(position) // len(members)
        own = batch_of(position) - share * (len(members) - 1) if self.index == members[0] else share
        total = batch_of(position)
        try:
            group.begin([], is_repeatable=True)(np.ones(1, bool))
            if item.kind != "alone":
                if group.is_compared():
                    group.compare([np.asarray(position)])
                for number in range(world.rounds):
                    [found] = group.reduce(f"sum {number}", [np.asarray(own)], "sum")
                    total = int(found)
            group.commit()
        except PeerLost as error:
            raise tf.errors.UnknownError(None, None, str(error)) from error
        except RunError as error:
            raise tf.errors.UnknownError(None, None, str(error)) from error
        self.values.apply(item, total)


# --- The network ---


class Network:
    """Network of a process: what `evener.workers.late.Network` is to a worker."""

    def __init__(self, owner: Process) -> None:
        self.owner = owner
        self.results_since: Callable[[int], bytes] | None = None
        self._over = 0
        self.is_closed = False

    def nobody(self) -> Mesh:
        return Mesh(self.owner, 0, [self.owner.index])

    def connect(self, view: View) -> Mesh:
        return connect(self.owner, view)

    def answer(self, results_since: Callable[[int], bytes]) -> None:
        self.results_since = results_since

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

    def __init__(self, owner: Process, view: int, members: Sequence[int]) -> None:
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
        """Take note of the other sides."""
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
            return (
                self._is_over
                or all(self._arrived[peer] for peer in self._peers)
                or any(peer in self._gone and not self._arrived[peer] for peer in self._peers)
            )

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
            side._owner.world.at(0.0, side._owner.poke)

        # The kernel takes it, also for a process that is frozen.
        self._owner.world.at(delay, arrive)


def connect(owner: Process, view: View) -> Mesh:
    """Connect a process with all other members of a view, as `connect_members` does.

    Raises:
        PeerLost: If one of them does not answer, or the view is over.
    """
    world = owner.world
    owner.network.end(view.number - 1)
    mesh = world.meetings.setdefault(view.number, {})
    # The other side may have made it: a connection is there before both look for it.
    own = mesh.setdefault(owner.index, Mesh(owner, view.number, view.members))
    until = world.now + world.delay()
    world.at(until - world.now, owner.poke)
    others = [k for k in view.members if k != owner.index]

    def peer_of(index: int) -> Process | None:
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


def ask(owner: Process, addresses: Sequence[str], number: int) -> list[Any]:
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
            if not each.is_frozen and each.network.results_since is not None:
                return CallResults.unpack_all(each.network.results_since(number))
            if world.now >= limit and (address != addresses[-1] or world.now >= until):
                break
            world.at(0.5, owner.poke)
            owner.wait(lambda again=world.now + 0.5: world.now >= again, f"{address}, frozen")
    raise ConnectionError("none of them answers")


# --- The coordinator and the launcher ---


class Line:
    """Connection of a process to the coordinator, seen by the coordinator; also `Channel` to it."""

    def __init__(self, owner: Process, receive: Callable[[Mapping[str, Any]], None]) -> None:
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
        """Close the connection: both sides see it."""
        if self._is_cut:
            return
        self._later(1, lambda: self._owner.world.coordinator.disconnected(self))
        self._owner.handle(lambda: self._receive({"kind": "closed"}))
        self._is_cut = True


class Condition:
    """`threading.Condition` of a process in the simulation."""

    def __init__(self, owner: Process) -> None:
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

    def __init__(self, owner: Process, job: Job, on_view_over: Callable[[], None]) -> None:
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


class Coordinator:
    """The real `Membership`, with simulated lines and a simulated clock."""

    def __init__(self, world: World, count: int, on_event: Callable[[Any], None]) -> None:
        self._world = world
        self._on_event = on_event
        self.address = "coordinator:1"
        self.membership = Membership(
            count,
            heartbeat_seconds=HEARTBEAT,
            start_seconds=START,
            patience_seconds=PATIENCE,
            emit=self._emit,
        )
        self._due: float | None = None
        self._reported = 0.0

    def start(self) -> None:
        self._world.coordinator = self

    def receive(self, line: Line, message: Message) -> None:
        if isinstance(message, Stop | Leave):
            self._world.note(
                f"{line.owner}: {type(message).__name__} {message.view} {message.done}"
            )
        self.membership.receive(line, message, self._world.now)
        self._plan_tick()

    def disconnected(self, line: Line) -> None:
        self.membership.disconnected(line, self._world.now, "its connection closed")
        self._plan_tick()

    def go_without(self, index: int) -> None:
        self.membership.go_without(index, self._world.now)
        self._plan_tick()

    def expect(self, index: int, incarnation: int) -> None:
        self.membership.expect(index, incarnation, self._world.now)
        self._plan_tick()

    def _plan_tick(self) -> None:
        due = self.membership.next_deadline()
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            # A little later: the sum of two times is rounded.
            self._world.at(max(due - self._world.now, 0.0) + 1e-6, self._tick)

    def _tick(self) -> None:
        self._due = None
        due = self.membership.next_deadline()
        if due is not None and due <= self._world.now:
            self.membership.tick(self._world.now)
        self._plan_tick()

    def _emit(self, event: Any) -> None:
        self._world.note(f"coordinator: {event}")
        self._world.disagreed |= isinstance(event, Failed) and event.error.code == "RUN-079"
        self._reported = max(self._reported, self._world.now + self._world.delay())
        self._world.at(self._reported - self._world.now, lambda: self._on_event(event))


class Launcher:
    """The real `Supervisor` and `JobControl` without a loop and threads."""

    def __init__(self, world: World) -> None:
        self._world = world
        settings = LaunchSettings(
            workers=tuple(WorkerCommand(index=k, words=()) for k in range(world.count)),
            environ={},
            logs=Path("/nowhere"),
            num_restarts=world.restarts,
            heartbeat_seconds=HEARTBEAT,
            start_seconds=START,
            grace_seconds=GRACE,
        )
        self._control = JobControl(settings, "host")
        console = Console(io.BytesIO(), io.BytesIO())
        vars(console).update(message=world.note, show_failure=lambda source: None)
        placement: Any = SimpleNamespace(start=self._begin)
        self._supervisor = Supervisor(
            settings, self._control, console, placement=placement, clock=lambda: world.now
        )
        vars(self._supervisor).update(_events=SimpleNamespace(put=self._put))

    def start(self) -> None:
        def make(count: int, secret: bytes, *, on_event: Any, **rest: Any) -> Coordinator:
            return Coordinator(self._world, count, on_event)

        with mock.patch.object(control, "Coordinator", make):
            self._control.start(self._handle)
        for index in range(self._world.count):
            self._supervisor._start((index, 0))
        self._supervisor._choose_chief()

    def _begin(self, start: Start) -> Any:
        index, incarnation = start.source
        start.environ("host")
        started = Process(self._world, index, incarnation, lambda code: start.on_end(code, ""))
        self._world.note(f"launcher starts {started}")
        self._world.processes[index] = started
        return SimpleNamespace(
            source=start.source, kill=lambda: started.end(-9), send=lambda number: None
        )

    def _put(self, event: Any) -> None:
        self._world.at(0.0, lambda: self._handle(event))

    def _handle(self, event: Any) -> None:
        if self._world.result is None:
            self._world.result = self._supervisor._handle(event)
            self._act()

    def _act(self) -> None:
        if self._world.result is not None:
            return
        self._supervisor._start_and_kill(self._world.now)
        due = self._supervisor._policy.next_time()
        if due < math.inf:
            self._world.at(max(due - self._world.now, 0.0) + 1e-6, self._act)


# --- Many schedules ---


@contextmanager
def in_place() -> Iterator[None]:
    """Put what a simulated process has in the place of what a real one has."""

    def end(code: int) -> None:
        raise SystemExit(code)

    quiet = SimpleNamespace(read=lambda: None, restore=lambda state: None)
    with (
        mock.patch.object(once, "random_state", quiet),
        mock.patch.object(supervisor, "WorkerOutput", lambda *args: None),
        mock.patch.object(process, "os", SimpleNamespace(_exit=end)),
        mock.patch.object(process, "print", lambda *args, **kwargs: None, create=True),
        mock.patch.object(late, "print", lambda *args, **kwargs: None, create=True),
    ):
        logging.getLogger("evener").setLevel(logging.ERROR)
        yield


def failure_of(seed: int, log: list[str] | None = None) -> str | None:
    """Run the schedule of a seed; return which promise it breaks, or None."""
    world = World(seed)
    world.log = log
    try:
        world.run()
    except Wrong as wrong:
        return str(wrong)
    finally:
        world.close()
    return None


def failures(seeds: Sequence[int]) -> list[tuple[int, str]]:
    """Return the seeds whose jobs break a promise, with the promise."""
    with in_place():
        found = ((seed, failure_of(seed)) for seed in seeds)
        return [(seed, text) for seed, text in found if text is not None]


def shrink(seed: int) -> tuple[list[tuple[int, str]], str]:
    """Return the fewest faults with which the job of a seed fails, and how it fails then."""
    with in_place():
        faults_left = World(seed).faults
        text = failure_of(seed) or ""
        for fault in list(faults_left):
            fewer = [each for each in faults_left if each is not fault]
            world = World(seed, fewer)
            try:
                world.run()
            except Wrong as wrong:
                faults_left, text = fewer, str(wrong)
            finally:
                world.close()
    return faults_left, text


def main() -> int:
    """Run many schedules; print what fails, and how to see it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the events of the first seed")
    options = parser.parse_args()
    if options.show:
        log: list[str] = []
        with in_place():
            text = failure_of(options.seed, log)
        print("\n".join(log), text or "nothing is wrong", sep="\n")
        return 0
    begin = time.monotonic()
    seeds = range(options.seed, options.seed + options.schedules)
    parts = [seeds[k : k + 500] for k in range(0, len(seeds), 500)]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        found = [each for part in pool.imap_unordered(failures, parts) for each in part]
    seconds = time.monotonic() - begin
    print(f"{len(seeds)} schedules from seed {seeds[0]} in {seconds:.0f} s: {len(found)} fail")
    kinds: dict[str, list[tuple[int, str]]] = {}
    for seed, text in sorted(found):
        kinds.setdefault(re.sub(r"[\d.]+", "#", text)[:90], []).append((seed, text))
    for each in kinds.values():
        faults_left, text = shrink(each[0][0])
        print(f"{len(each)} times, first --seed {each[0][0]} with {faults_left}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
