"""Whole jobs of several workers in one thread, on a clock and a network that are simulated.

::

    seed ──► schedule: program, delays, deaths, freezes        heap of events, by virtual time
               │
               ├─ workers      greenlets: the real Group and Late; each wait is a switch
               ├─ coordinator  the real Membership
               └─ launcher     the real Supervisor and Policy

Behind every item of its program, the whole state of a worker is compared with that of an
undisturbed run. A seed gives the same job, event by event.
"""

from __future__ import annotations

import argparse
import gc
import io
import logging
import math
import multiprocessing
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import greenlet
import numpy as np
import tensorflow as tf

from evener.errors import EvenerError, RunError
from evener.workers import faults, late, process, supervisor
from evener.workers import files as once
from evener.workers import supervisor as control
from evener.workers.group import Group
from evener.workers.job import Job
from evener.workers.membership import Membership
from evener.workers.mesh import PeerLost
from evener.workers.messages import Beat, Failed, Leave, Message, Stop
from evener.workers.output import Console
from evener.workers.supervisor import (
    JobControl,
    LaunchSettings,
    Supervisor,
    WorkerCommand,
    WorkerStart,
)
from workers.simulated_network import Line, Network, SimulatedMember
from workers.simulated_world import (
    GRACE,
    HEARTBEAT,
    PATIENCE,
    START,
    Item,
    Killed,
    Values,
    World,
    Wrong,
    batch_of,
)


class Collectives:
    """TensorFlow's collectives: here the mesh carries them, and the group sees nothing of it."""

    address = ""

    def begin(self, addresses: Mapping[int, str]) -> None:
        """Begin with the members of a view."""

    def abort(self) -> None:
        """End, as the mesh does."""


class Process:
    """A worker's process: a greenlet for its program, and the handlers of its other threads."""

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
        self._ready: Callable[[], bool] = lambda: True
        self._limit: float | None = None
        self._greenlet = greenlet.greenlet(self._main)
        self._parent: Any = self._greenlet.parent
        world.at(world.start_delay * (0.5 + world.rng.random()), self.poke)

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
        """Let the program go on, if it can. Called by the world alone."""
        if self.is_alive and not self.is_frozen and (self._is_over() or self._ready()):
            self._greenlet.switch()

    def _is_over(self) -> bool:
        return self._limit is not None and self.world.now >= self._limit

    def freeze(self, seconds: float) -> None:
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
        self._limit = None
        if seconds is not None:
            self._limit = self.world.now + seconds
            self.world.at(seconds, self.poke)
        self._waiting_for, self._ready = what, ready
        while not ready():
            if self._is_over():
                return False
            self._parent.switch()
        return True

    def compute(self) -> None:
        """Let time pass, as a kernel or Python does."""
        self.pause(0.01 * (0.5 + self.world.rng.random()))

    def pause(self, seconds: float) -> None:
        self.wait(lambda: False, "a pause", seconds)

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
        group.variables = self.values
        groups.append(group)
        if not group.is_late:
            group.connect()
        if world.uses_collectives:
            carrier: Any = Collectives()
            group.use_collectives(carrier)
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
                if world.uses_collectives:
                    group.begin_collectives("step")
                for number in range(world.rounds):
                    carrier = group._mesh if world.uses_collectives else group
                    [found] = carrier.reduce(f"sum {number}", [np.asarray(own)], "sum")
                    total = int(found)
            group.commit()
        except PeerLost as error:
            if world.uses_collectives and group._call.failure is None:
                aborted = "Collective ops is aborted by: a worker is gone"
                raise tf.errors.UnavailableError(None, None, aborted) from error
            raise tf.errors.UnknownError(None, None, str(error)) from error
        except RunError as error:
            raise tf.errors.UnknownError(None, None, str(error)) from error
        self.values.apply(item, total)


class Coordinator:
    """The real `Membership`, with simulated lines and a simulated clock."""

    def __init__(self, world: World, count: int) -> None:
        self._world = world
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

    def start(self, on_event: Callable[[Any], None]) -> None:
        self._on_event = on_event
        self._world.coordinator = self

    def receive(self, line: Line, message: Message) -> None:
        if isinstance(message, Stop | Leave):
            self._world.note(
                f"{line.owner}: {type(message).__name__} {message.view} {message.done}"
            )
        self.membership.receive(line, message, self._world.now)
        if not isinstance(message, Beat):
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

        def make(count: int, secret: bytes, **rest: Any) -> Coordinator:
            return Coordinator(world, count)

        with mock.patch.object(control, "Coordinator", make):
            self._control = JobControl(settings, "host")
        console = Console(io.BytesIO(), io.BytesIO())
        vars(console).update(message=world.note, show_failure=lambda source: None)
        placement: Any = SimpleNamespace(start=self._begin)
        self._supervisor = Supervisor(
            settings, self._control, console, placement=placement, clock=lambda: world.now
        )
        vars(self._supervisor).update(_events=SimpleNamespace(put=self._put))

    def start(self) -> None:
        self._control.start(self._handle)
        for index in range(self._world.count):
            self._supervisor._start((index, 0))
        self._supervisor._choose_chief()

    def _begin(self, start: WorkerStart) -> Any:
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
    world = World(seed, Launcher)
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
        faults_left = World(seed, Launcher).faults
        text = failure_of(seed) or ""
        for fault in list(faults_left):
            fewer = [each for each in faults_left if each is not fault]
            world = World(seed, Launcher, fewer)
            try:
                world.run()
            except Wrong as wrong:
                faults_left, text = fewer, str(wrong)
            finally:
                world.close()
    return faults_left, text


def main() -> int:
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
    # Collections would look through TensorFlow.
    with multiprocessing.get_context("fork").Pool(options.jobs, initializer=gc.freeze) as pool:
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
